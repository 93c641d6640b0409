// A request from the fields of a form, and the same request as a curl command.

const KEY = "Idempotency-Key";

export function newKey() {
  // Not randomUUID, which pages without TLS do not have.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const digits = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return digits.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

// Returns method, url, headers (pairs without the token), and a body: a text, a list of parts, or nothing.
export function requestOf(form) {
  let path = form.dataset.path;
  const query = new URLSearchParams();
  const headers = [];
  const parts = [];
  for (const input of form.querySelectorAll("[data-in]")) {
    const { name } = input;
    const place = input.dataset.in;
    const values = input.type === "file" ? [...input.files] : "list" in input.dataset ? input.value.split("\n") : [input.value];
    for (const value of values.map((one) => (typeof one === "string" && place !== "form" ? one.trim() : one))) {
      if (place === "path") path = path.replace(`{${name}}`, () => encodeURIComponent(value));
      else if (value === "") continue;
      else if (place === "query") query.append(name, value);
      else if (place === "header") headers.push([name, value]);
      else if (place === "form") parts.push([name, value]);
    }
  }
  const url = new URL(path, location.origin);
  url.search = query;
  const body = form.querySelector("[data-body]");
  if (body && body.value.trim()) headers.push(["Content-Type", body.dataset.body]);
  const text = body && body.value.trim() ? body.value : null;
  const isForm = form.querySelector("[data-in=form]") !== null;
  return { method: form.dataset.method, url: url.href, headers, text, parts: isForm ? parts : null };
}

export function bodyOf({ text, parts }) {
  if (parts === null) return text;
  const data = new FormData();
  for (const [name, value] of parts) data.append(name, value);
  return data;
}

// For POSIX shells: nothing inside of single quotes has a meaning.
export function quoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

// The token is a variable, so that it is neither shown nor in the history of the shell.
export function curlOf({ method, url, headers, text, parts }, { withToken, isStream }) {
  const lines = [`curl -i${isStream ? "N" : ""} -X ${method} ${quoted(url)}`];
  if (withToken) lines.push('-H "Authorization: Bearer $TOKEN"');
  for (const [name, value] of headers) lines.push(`-H ${quoted(`${name}: ${value}`)}`);
  if (text !== null) lines.push(`--data-raw ${quoted(text)}`);
  for (const [name, value] of parts || []) {
    if (typeof value === "string") lines.push(`--form-string ${quoted(`${name}=${value}`)}`);
    else lines.push(`-F ${quoted(`${name}=@"${value.name.replaceAll(/["\\]/g, String.raw`\$&`)}"`)}`);
  }
  return lines.join(" \\\n  ");
}

export function keyInput(form) {
  return form.querySelector(`[data-key][name="${KEY}"]`);
}
