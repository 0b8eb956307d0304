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
// Maps are coloured for a light ground.
const light = () => document.body.classList.remove("dark");
const keepLight = () => {
  light();
  new MutationObserver(light).observe(document.body, { attributes: true, attributeFilter: ["class"] });
};
if (document.body) keepLight();
else document.addEventListener("DOMContentLoaded", keepLight);
