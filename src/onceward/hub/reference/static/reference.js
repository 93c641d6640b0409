// The page of the API reference: filter, anchors, and a form for each operation. Without this file the page can be read.

import { bodyOf, curlOf, keyInput, newKey, requestOf } from "./request.js";
import { show, showFailure } from "./response.js";

const token = document.getElementById("token");
const operations = [...document.querySelectorAll(".operation")];
for (const one of document.querySelectorAll(".needs-script")) one.hidden = false;
for (const one of document.querySelectorAll(".without-script")) one.hidden = true;

// Forms.

function prepare(form) {
  const result = form.querySelector(".result");
  const key = keyInput(form);
  const again = form.querySelector(".again");
  const stop = form.querySelector(".stop");
  const sendButton = form.querySelector("button.primary");
  let madeKey = "";
  let usedKey = "";
  let running = null;

  const describe = () => {
    const options = { withToken: "token" in form.dataset && token.value.trim() !== "", isStream: "stream" in form.dataset };
    form.querySelector(".curl").textContent = curlOf(requestOf(form), options);
  };
  const renewKey = () => {
    key.value = madeKey = newKey();
    describe();
  };

  async function send() {
    if (running !== null || !form.reportValidity()) return;
    const request = requestOf(form);
    const headers = new Headers();
    running = new AbortController();
    sendButton.disabled = true;
    if (again) again.disabled = true;
    stop.hidden = false;
    const began = performance.now();
    try {
      for (const [name, value] of request.headers) headers.append(name, value);
      if (token.value.trim() && "token" in form.dataset) headers.set("Authorization", `Bearer ${token.value.trim()}`);
      // Without credentials: the API takes a token, never the cookie of the console.
      const sent = { method: request.method, headers, body: bodyOf(request), credentials: "omit", cache: "no-store", signal: running.signal };
      if (key) usedKey = key.value.trim();
      await show(result, await fetch(request.url, sent), began);
    } catch (error) {
      if (error.name !== "AbortError") showFailure(result, error);
      else if (result.hidden) showFailure(result, new Error("stopped before the response began"));
      else result.querySelector(".outcome").append(" stopped");
    } finally {
      running = null;
      sendButton.disabled = false;
      stop.hidden = true;
      if (again) {
        again.disabled = false;
        again.hidden = !usedKey;
      }
    }
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    // A key that the reader has typed stays.
    if (key && running === null && key.value === usedKey && usedKey === madeKey) renewKey();
    send();
  });
  form.addEventListener("input", describe);
  stop.addEventListener("click", () => running?.abort());
  token.addEventListener("input", describe);
  form.querySelector(".copy").addEventListener("click", (event) => copy(event.target, form.querySelector(".curl")));
  const type = form.querySelector("[data-type]");
  type?.addEventListener("change", () => {
    const body = form.querySelector("[data-body]");
    body.dataset.body = type.value;
    body.value = type.selectedOptions[0].dataset.example;
    describe();
  });
  if (key) {
    form.querySelector(".new-key").addEventListener("click", renewKey);
    again.addEventListener("click", () => {
      key.value = usedKey;
      describe();
      send();
    });
    renewKey();
  }
  describe();
}

async function copy(button, source) {
  try {
    await navigator.clipboard.writeText(source.textContent);
    button.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(source);
    button.textContent = "Selected";
  }
  setTimeout(() => { button.textContent = "Copy"; }, 2000);
}

for (const one of document.querySelectorAll(".try")) {
  one.addEventListener("toggle", () => {
    const template = one.querySelector("template");
    if (!one.open || !template) return;
    template.replaceWith(template.content.cloneNode(true));
    prepare(one.querySelector("form"));
  });
}

document.getElementById("forget").addEventListener("click", () => {
  token.value = "";
  token.dispatchEvent(new Event("input"));
});

// Filter and anchors.

const filter = document.getElementById("filter");
const texts = new Map(operations.map((one) => [one, one.querySelector("summary").textContent.toLowerCase().replaceAll(/\s+/g, " ")]));

function applyFilter() {
  const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const [one, text] of texts) one.hidden = !words.every((word) => text.includes(word));
  for (const group of document.querySelectorAll(".group")) group.hidden = group.querySelector(".operation:not([hidden])") === null;
  const count = operations.filter((one) => !one.hidden).length;
  document.getElementById("found").textContent = `${count || "No"} ${count === 1 ? "operation" : "operations"}`;
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (filter.value) {
    filter.value = "";
    applyFilter();
  }
  if (target.matches(".operation")) target.open = true;
  target.scrollIntoView();
}

filter.addEventListener("input", applyFilter);
addEventListener("hashchange", openTarget);
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, textarea, select")) return;
  event.preventDefault();
  filter.focus();
});
// Browsers restore fields when a page is reloaded, but a token is promised to be forgotten.
token.value = "";
applyFilter();
openTarget();
