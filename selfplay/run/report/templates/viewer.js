// Polls the server and replaces the main part of the page if it has changed. The server sets the
// interval. A hidden page does not poll.
"use strict";
let tag = "";
let wait = 5;

// Returns true if a form has unsent input, which a replacement of the page would lose.
function begun() {
  const fields = [...document.querySelectorAll("main input, main textarea")];
  return fields.some((f) => f.checked !== f.defaultChecked || f.value !== f.defaultValue);
}

function show(answer, text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  if (!page.querySelector("main")) throw new Error("not a page of this server");
  document.querySelector("main").replaceWith(page.querySelector("main"));
  document.querySelector(".over").replaceWith(page.querySelector(".over"));
  document.querySelector("main [autofocus]")?.focus();
  tag = answer.headers.get("ETag") || "";
  wait = Number(answer.headers.get("X-Look-Again")) || wait;
}

async function look() {
  if (document.querySelector("main[data-live]") && !document.hidden && !begun()) {
    try {
      const answer = await fetch(location.href, { headers: { "If-None-Match": tag || '"none"' } });
      if (![200, 304].includes(answer.status)) throw new Error("not a page of this server");
      wait = Number(answer.headers.get("X-Look-Again")) || wait;
      const text = await answer.text();
      if (answer.status === 200 && !begun()) show(answer, text);
      document.body.classList.remove("lost");
    } catch {
      document.body.classList.add("lost"); // the server has ended, or another has its port
    }
  }
  setTimeout(look, 1000 * wait);
}

// Sends a form without leaving the page, so that its text stays if the server has ended.
document.addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method !== "post") return;
  event.preventDefault();
  const button = event.submitter || form.querySelector("button");
  if (button.disabled) return;
  const body = new URLSearchParams(new FormData(form, event.submitter));
  button.disabled = true;
  try {
    const answer = await fetch(form.action, { method: "POST", body });
    show(answer, await answer.text());
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
    button.disabled = false;
  }
});

// The keys j and k open the next and the previous episode or group.
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) return;
  const relation = { j: "next", k: "prev" }[event.key];
  if (relation) document.querySelector(`main a[rel="${relation}"]`)?.click();
});

// The slider of a heat map: draws the cells of another step from the page's data, fetched once.
let frames = null;

function shade(share) {
  return share > 0 ? Math.min(8, 1 + Math.floor(8 * share)) : 0;
}

function link(anchor, times, text, title, step) {
  anchor.textContent = text;
  anchor.title = title;
  const place = anchor.closest("table").dataset.episodes;
  if (times) anchor.href = `${place}${anchor.dataset.link}&step=${step}`;
  else anchor.removeAttribute("href");
}

function paint(table, at) {
  const step = frames.steps[at];
  [...table.tBodies[0].rows].forEach((line, row) => {
    const uses = frames.uses[at][row];
    frames.times[at][row].forEach((times, column) => {
      const cell = line.cells[column + 1];
      const share = uses ? times / uses : 0;
      const text = times ? `${Math.round(100 * share)}` : "";
      cell.className = `heat-${shade(share)}`;
      link(cell.querySelector("a"), times, text, times ? `${times} of ${uses}` : "", step);
      const exact = cell.querySelector(".exact");
      const known = frames.exact?.[at]?.[row][column];
      if (exact) exact.textContent = known == null ? "" : `exact ${Math.round(100 * known)}`;
    });
    const others = line.querySelector(".others");
    const listed = frames.times[at][row].reduce((sum, times) => sum + times, 0);
    if (others) others.textContent = uses > listed ? `${uses - listed}` : "";
    link(line.querySelector(".total a"), uses, `${uses}`, "", step);
  });
}

// A slider without data of its own shows its step while it is dragged, and then asks for the page.
document.addEventListener("input", (event) => {
  const labels = event.target.dataset.labels?.split(" ");
  if (labels) event.target.form.querySelector("output").textContent = labels[event.target.value];
});

document.addEventListener("change", (event) => {
  if (event.target.form?.matches("[data-sends]")) event.target.form.requestSubmit();
});

document.addEventListener("input", async (event) => {
  const form = event.target.closest(".slider");
  const table = document.querySelector("table[data-frames]");
  if (!form || !table) return;
  try {
    if (!frames) {
      const answer = await fetch(table.dataset.frames);
      if (!answer.ok) throw new Error("not a page of this server");
      frames = await answer.json();
    }
    const at = Number(form.elements.at.value);
    paint(table, at);
    form.querySelector("output").textContent = frames.steps[at];
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
});

// The present work of a training run is a small part of its page and changes more often.
async function lookAtPresent() {
  const parts = document.hidden ? [] : [...document.querySelectorAll("[data-present]")];
  let again = 2;
  try {
    for (const part of parts.slice(0, 8)) {
      const answer = await fetch(part.dataset.present);
      if (!answer.ok) throw new Error("not a page of this server");
      again = Number(answer.headers.get("X-Look-Again")) || again;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      part.replaceChildren(...page.body.childNodes);
    }
    if (parts.length) document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
  }
  setTimeout(lookAtPresent, 1000 * again);
}

setTimeout(lookAtPresent, 1000);
wait = Number(document.querySelector("main[data-live]")?.dataset.live) || wait;
setTimeout(look, 1000 * wait);
