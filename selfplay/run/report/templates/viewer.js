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
  const button = form.querySelector("button");
  if (button.disabled) return;
  button.disabled = true;
  try {
    const body = new URLSearchParams(new FormData(form));
    const answer = await fetch(form.action, { method: "POST", body });
    show(answer, await answer.text());
    document.body.classList.remove("lost");
  } catch {
    document.body.classList.add("lost");
    button.disabled = false;
  }
});

wait = Number(document.querySelector("main[data-live]")?.dataset.live) || wait;
setTimeout(look, 1000 * wait);
