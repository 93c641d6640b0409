// A response as it arrives: status, headers, time, and a body that is pretty, streamed, or saved as a file.

// More text than this would make the page slow. The rest can be read with curl.
const CHARACTERS_MAX = 500_000;

function pill(text, kind) {
  const made = document.createElement("span");
  made.className = `pill ${kind}`;
  made.textContent = text;
  return made;
}

function plain(text) {
  const made = document.createElement("span");
  made.className = "soft small";
  made.textContent = text;
  return made;
}

export function showFailure(result, error) {
  result.hidden = false;
  result.querySelector(".outcome").replaceChildren(pill("not sent", "bad"), plain(`No response: ${error.message}`));
  result.querySelector(".head-lines").hidden = true;
  result.querySelector(".answer").hidden = true;
}

// Shows the response until it is complete or stopped. Text is set as text, so that no response can run anything.
export async function show(result, response, began) {
  const outcome = result.querySelector(".outcome");
  const answer = result.querySelector(".answer");
  const head = result.querySelector(".head-lines");
  const spent = plain("");
  const type = response.headers.get("content-type") || "";
  result.hidden = head.hidden = false;
  answer.hidden = false;
  answer.textContent = "";
  head.querySelector("pre").textContent = [...response.headers].map(([name, value]) => `${name}: ${value}`).join("\n");
  outcome.replaceChildren(pill(`${response.status} ${response.statusText}`.trim(), response.ok ? "good" : "bad"));
  if (response.headers.get("idempotent-replayed") === "true") {
    outcome.append(pill("Idempotent-Replayed: true", "replayed"));
  }
  const retryAfter = response.headers.get("retry-after");
  if (retryAfter) outcome.append(plain(`Retry-After: ${retryAfter} s`));
  outcome.append(spent);
  const clock = () => { spent.textContent = `${Math.round(performance.now() - began)} ms`; };
  clock();
  if (/^(text\/event-stream|application\/x-ndjson)/.test(type)) {
    await showStream(answer, response);
  } else if (/^text\/|[/+]json|^$/.test(type)) {
    const text = await response.text();
    answer.textContent = pretty(text, type).slice(0, CHARACTERS_MAX) || "(no body)";
  } else {
    showFile(answer, await response.blob(), response.headers.get("content-disposition") || "");
  }
  clock();
}

async function showStream(answer, response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    answer.append(value);
    if (answer.textContent.length > CHARACTERS_MAX) answer.textContent = answer.textContent.slice(-CHARACTERS_MAX / 2);
    answer.scrollTop = answer.scrollHeight;
  }
}

function pretty(text, type) {
  if (!/json/.test(type)) return text;
  try {
    // Parsing changes numbers that a double cannot hold, which are then shown as they came.
    const indented = JSON.stringify(JSON.parse(text), null, 2);
    return /\d{16}/.test(text) ? text : indented;
  } catch {
    return text;
  }
}

function showFile(answer, blob, disposition) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  link.download = (/filename="([^"]+)"/.exec(disposition) || [])[1] || "content";
  link.textContent = `Save ${link.download} (${blob.size} bytes)`;
  answer.replaceChildren(link);
}
