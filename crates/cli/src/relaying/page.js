"use strict";
// What is shown is made by the relay; this asks for it again, and puts it in place.
const refresh = async () => {
  try {
    const told = await fetch("/", { cache: "no-store" });
    if (!told.ok) throw new Error(told.status);
    const page = new DOMParser().parseFromString(await told.text(), "text/html");
    document.querySelector("main").replaceWith(page.querySelector("main"));
    document.body.classList.remove("stale");
  } catch {
    document.body.classList.add("stale");
  }
  setTimeout(refresh, 1000);
};
setTimeout(refresh, 1000);
