// Uploads: several files at a time, by choosing or dropping them, with a progress bar for each. Without this file, the
// form sends one file.

const form = document.getElementById("upload");
const input = document.getElementById("content");
const drop = document.getElementById("drop");
const button = document.getElementById("upload-button");
const title = form.elements.title;
const list = document.getElementById("uploads");
const state = document.getElementById("upload-state");
const maxBytes = Number(form.dataset.maxBytes);
// A key of 128 random bits. `crypto.randomUUID` is missing on pages without TLS.
const KEY_BYTES = 16;

let sending = false;

function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(KEY_BYTES));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function shownSize(bytes) {
  for (const [unit, factor] of [["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
    if (bytes >= factor) return `${(bytes / factor).toFixed(1)} ${unit}`;
  }
  return `${bytes} B`;
}

function made(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

// A file with its row. Every attempt has the same key, so that the file is attached once even if only the response of
// an earlier attempt was lost.
function rowOf(file) {
  const isTooLarge = file.size > maxBytes;
  const bar = made("progress", { max: 1, value: 0, hidden: isTooLarge });
  bar.setAttribute("aria-label", file.name);
  const note = made("span", { className: "note", textContent: isTooLarge ? `too large: at most ${shownSize(maxBytes)}` : "not sent yet" });
  const again = made("button", { type: "button", className: "small", textContent: "Try again", hidden: true });
  again.setAttribute("aria-label", `Try ${file.name} again`);
  const name = made("span", { className: "name", textContent: file.name }, made("span", { className: "soft small", textContent: ` ${shownSize(file.size)}` }));
  const row = { file, bar, note, again, isTooLarge, key: newKey(), isDone: false };
  row.element = made("li", { className: isTooLarge ? "bad" : "" }, name, bar, note, again);
  again.addEventListener("click", () => sendAll([row]));
  return row;
}

function bodyOf(row) {
  const body = new FormData(form);
  // The hub checks the fields before it reads the file, which therefore comes last.
  body.delete("content");
  body.set("idempotency_key", row.key);
  body.append("content", row.file, row.file.name);
  return body;
}

function send(row, body) {
  return new Promise((resolve) => {
    const request = new XMLHttpRequest();
    request.open("POST", form.action);
    request.setRequestHeader("Accept", "application/json");
    request.upload.addEventListener("progress", (event) => {
      row.bar.value = event.loaded / event.total;
      row.note.textContent = event.loaded < event.total ? `${Math.floor((100 * event.loaded) / event.total)} %` : "storing";
    });
    request.addEventListener("load", () => {
      if (request.status === 201) return resolve("");
      let detail = `The hub answered ${request.status}.`;
      try {
        const problem = JSON.parse(request.responseText);
        detail = problem.detail || detail;
      } catch {
        // Not from the hub: a proxy in between.
      }
      return resolve(detail);
    });
    request.addEventListener("error", () => resolve("The connection broke. Try again: the file is attached only once."));
    request.send(body);
  });
}

async function sendOne(row, body) {
  row.again.hidden = true;
  row.bar.hidden = false;
  row.element.className = "";
  const problem = await send(row, body);
  row.isDone = !problem;
  row.element.className = problem ? "bad" : "good";
  row.note.textContent = problem || "attached";
  row.bar.hidden = true;
  row.again.hidden = !problem;
}

let rows = [];

function unsent() {
  return rows.filter((row) => !row.isDone && !row.isTooLarge);
}

async function sendAll(some) {
  if (sending || !some.length) return;
  sending = true;
  button.disabled = true;
  input.disabled = true;
  // All fields are read now: changes during the upload are for the next attempt.
  const bodies = some.map(bodyOf);
  for (const [index, row] of some.entries()) {
    state.textContent = `Sending ${index + 1} of ${some.length}…`;
    await sendOne(row, bodies[index]);
  }
  sending = false;
  button.disabled = false;
  input.disabled = false;
  const done = rows.filter((row) => row.isDone).length;
  if (done === rows.length) {
    const page = new URL(form.action);
    page.searchParams.set("notice", done === 1 ? "attached" : "attached-all");
    location.assign(page);
    return;
  }
  showCount();
  state.textContent = `${done} of ${rows.length} attached.`;
  if (done) state.append(" ", made("a", { href: form.action, textContent: "Show the task" }));
}

function showCount() {
  const count = unsent().length;
  button.textContent = count > 1 ? `Attach ${count} files` : "Attach";
}

function showChosen() {
  rows = Array.from(input.files, rowOf);
  list.replaceChildren(...rows.map((row) => row.element));
  list.hidden = !rows.length;
  // One title cannot name several files; their own names do.
  title.disabled = rows.length > 1;
  state.textContent = "";
  showCount();
}

input.multiple = true;
input.addEventListener("change", showChosen);
showChosen();

form.addEventListener("submit", (event) => {
  event.preventDefault();
  // A second click sends only what is not attached yet.
  sendAll(unsent());
});

// Files can be dropped anywhere: beside the field, the browser would leave the page and open them.
function hasFiles(event) {
  return event.dataTransfer !== null && event.dataTransfer.types.includes("Files");
}

document.addEventListener("dragover", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  drop.classList.add("over");
});
document.addEventListener("dragleave", (event) => {
  if (event.relatedTarget === null) drop.classList.remove("over");
});
document.addEventListener("drop", (event) => {
  if (!hasFiles(event)) return;
  event.preventDefault();
  drop.classList.remove("over");
  if (sending) return;
  input.files = event.dataTransfer.files;
  showChosen();
  button.focus();
});

addEventListener("beforeunload", (event) => {
  if (sending) event.preventDefault();
});
