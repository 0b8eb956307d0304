// The frame of an explanation says how tall it is, and which rectangle was drawn in it.
window.addEventListener("message", (event) => {
  if (event.origin !== window.location.origin || !event.data) return;
  const { hilrp, height, box } = event.data;
  if (hilrp === "height") {
    for (const frame of document.querySelectorAll("iframe.viewer"))
      if (frame.contentWindow === event.source) frame.style.height = `${Math.ceil(height)}px`;
  }
  if (hilrp === "region") {
    const field = document.querySelector("#region textarea, #region input");
    if (!field) return;
    field.value = box;
    field.dispatchEvent(new Event("input", { bubbles: true }));
    setTimeout(() => field.dispatchEvent(new KeyboardEvent("keypress", { key: "Enter", code: "Enter", bubbles: true })), 200);
  }
});
// Who types into a list means another name: what is there is chosen, so that it is replaced and not added to. At once,
// not by a timer: what is typed after the click could come before it.
const lists = "input[role=listbox], input[role=combobox]";
let entered = null; // the list that the pointer has entered and not yet been released on
document.addEventListener("pointerdown", ({ target }) => {
  entered = target.matches?.(lists) && target !== document.activeElement ? target : null;
});
document.addEventListener("focusin", ({ target }) => {
  if (target.matches?.(lists)) target.select();
});
// The pointer has put the caret somewhere, wherever it is released: what is there moves while the page is laid out.
document.addEventListener("click", () => {
  if (entered === document.activeElement && entered?.selectionStart === entered?.selectionEnd) entered?.select();
  entered = null;
});
// Gradio is dark where the browser asks for it, or the address (?__theme=dark): colours and the explanation follow.
const follow = () => {
  const scheme = document.body.classList.contains("dark") ? "dark" : "light";
  const frames = [...document.querySelectorAll("iframe.viewer")];
  for (const each of [document, ...frames.map((frame) => frame.contentDocument)])
    each?.documentElement?.style.setProperty("color-scheme", scheme);
};
const watch = () => {
  follow();
  new MutationObserver(follow).observe(document.body, { attributes: true, attributeFilter: ["class"] });
  document.addEventListener("load", follow, true); // of frames, too
};
if (document.body) watch();
else document.addEventListener("DOMContentLoaded", watch);
