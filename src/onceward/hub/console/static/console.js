// Keys, rows, and copying. Every page works without this file.

const dialog = document.getElementById("keys");
for (const one of document.querySelectorAll(".needs-script")) one.hidden = false;

function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || ["INPUT", "TEXTAREA", "SELECT"].includes(target.tagName));
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-row] [data-open]")];
  if (!rows.length) return;
  const at = rows.indexOf(document.activeElement);
  const next = rows[at === -1 ? (step > 0 ? 0 : rows.length - 1) : Math.min(Math.max(at + step, 0), rows.length - 1)];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || dialog.open) return;
  if (event.key === "?") {
    event.preventDefault();
    dialog.showModal();
  } else if (event.key === "/") {
    const filter = document.querySelector("input[type=search]");
    if (filter) {
      event.preventDefault();
      filter.focus();
      filter.select();
    }
  } else if (event.key === "j" || event.key === "k") {
    event.preventDefault();
    moveRow(event.key === "j" ? 1 : -1);
  } else {
    const link = document.querySelector(`.nav a[data-key="${CSS.escape(event.key)}"]`);
    if (link) link.click();
  }
});

for (const button of document.querySelectorAll("[data-copy]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copy);
    const before = button.textContent;
    try {
      await navigator.clipboard.writeText(source.textContent);
      button.textContent = "Copied";
    } catch {
      // Without permission, the text is selected, so that it can be copied by hand.
      getSelection().selectAllChildren(source);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = before; }, 2000);
  });
}
