// Looks now and then whether the page would be another, and if so puts its new middle in place of
// the old one. How often, the server says. A page that nobody sees does not ask.
"use strict";
let tag = "";
let wait = 5;

async function look() {
  // What somebody has ticked and not sent yet would be lost.
  if (!document.hidden && !document.querySelector("main input:checked")) {
    try {
      const answer = await fetch(location.href, { headers: tag ? { "If-None-Match": tag } : {} });
      wait = Number(answer.headers.get("X-Look-Again")) || wait;
      if (answer.status === 200) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        document.querySelector("main").replaceWith(page.querySelector("main"));
        tag = answer.headers.get("ETag");
      }
      document.body.classList.remove("lost");
    } catch {
      document.body.classList.add("lost"); // the server has ended; the page says so
    }
  }
  setTimeout(look, 1000 * wait);
}

if (document.querySelector("main[data-live]")) setTimeout(look, 1000 * wait);
