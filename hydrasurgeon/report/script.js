"use strict";
// What a word says, beside it, for a pointer and for the Tab key.
(() => {
  const tip = document.getElementById("tip");
  let current = null;
  const hide = () => { if (current) current.classList.remove("on"); current = null; tip.hidden = true; };
  const show = (mark) => {
    hide();
    current = mark;
    mark.classList.add("on");
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    place();
  };
  const place = () => {
    if (!current) return;
    const at = current.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(8, at.left + at.width / 2 - own.width / 2), document.documentElement.clientWidth - own.width - 8);
    const above = at.top - own.height - 8;
    tip.style.left = `${left}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 8}px`;
  };
  document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest("[data-tip]");
    if (mark) show(mark); else if (!document.activeElement.matches("dfn")) hide();
  });
  document.addEventListener("focusin", (event) => { if (event.target.dataset.tip) show(event.target); });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") hide();
  });
  addEventListener("beforeprint", () => { for (const each of document.querySelectorAll("details")) each.open = true; });
  document.addEventListener("focusout", hide);
  document.addEventListener("scroll", place, { capture: true, passive: true });
})();
