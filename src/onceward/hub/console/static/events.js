// Live events: new ones are put on top as they arrive. The page itself shows the log without this file.

const list = document.getElementById("events");
const state = document.getElementById("live-state");
const pause = document.getElementById("pause");
const resume = document.getElementById("resume");
const empty = document.getElementById("no-events");
// More would make the page slow; the log has them all.
const ROWS_MAX = 500;

let held = [];
let paused = false;

function row(event) {
  const item = document.createElement("li");
  item.dataset.row = "";
  item.className = "new";
  const details = document.createElement("details");
  const summary = document.createElement("summary");
  summary.dataset.open = "";
  for (const [name, text] of [["id", event.event_id], ["name", event.name], ["what", `${event.entity_type} ${event.entity_id}`]]) {
    const part = document.createElement("span");
    part.className = name;
    part.textContent = text;
    summary.append(part, " ");
  }
  const time = document.createElement("time");
  time.dateTime = event.created_at;
  time.textContent = event.created_at.slice(0, 19).replace("T", " ");
  summary.append(time);
  const data = document.createElement("pre");
  data.tabIndex = 0;
  data.textContent = JSON.stringify(event.data, null, 2);
  details.append(summary, data);
  item.append(details);
  return item;
}

function show(event) {
  empty.hidden = true;
  list.prepend(row(event));
  while (list.children.length > ROWS_MAX) list.lastElementChild.remove();
}

function setState(text, kind) {
  state.textContent = text;
  state.className = `pill ${kind}`;
}

function moveResumePoint(id) {
  const address = new URL(resume.href);
  address.searchParams.set("after", id);
  resume.href = address;
  resume.textContent = id;
}

function follow() {
  const address = new URL("/console/events/stream", location.href);
  address.searchParams.set("after", list.dataset.after);
  if (list.dataset.name) address.searchParams.set("name", list.dataset.name);
  if (list.dataset.topic) address.searchParams.set("topic", list.dataset.topic);
  const source = new EventSource(address);
  source.onopen = () => setState(paused ? "paused" : "live", paused ? "failed" : "done");
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    if (paused) {
      held.push(event);
      setState(`paused, ${held.length} new`, "failed");
    } else {
      show(event);
      moveResumePoint(event.event_id);
    }
  };
  // The browser connects again by itself, and resumes after the last event.
  source.onerror = () => setState(source.readyState === EventSource.CLOSED ? "ended" : "connecting", "unknown");
  source.addEventListener("error", (message) => {
    if (!message.data) return;
    const reason = JSON.parse(message.data);
    if (reason.code === "unauthorized") {
      source.close();
      setState("log in again", "unknown");
    }
  });
  return source;
}

if (list.dataset.live === "yes") {
  follow();
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
    setState(paused ? "paused" : "live", paused ? "failed" : "done");
    if (!paused) {
      for (const event of held) {
        show(event);
        moveResumePoint(event.event_id);
      }
      held = [];
    }
  });
} else {
  state.parentElement.hidden = true;
}
