"use strict";
// Names every picture for a screen reader, and fits it to a narrow screen and to the colour scheme.
(() => {
  const themes = __THEMES__;
  const narrow = matchMedia("(max-width: 640px)");
  const scheme = () => (document.body.classList.contains("dark") ? "dark" : "light");

  function dress(plot) {
    const layout = plot.layout;
    if (!layout || !layout.meta || !window.Plotly) return;
    const wanted = `${scheme()} ${narrow.matches}`;
    // Noted in the layout: a new answer brings a new one, in the same place or in another.
    if (layout.meta.dressed === wanted) return;
    const first = !layout.meta.dressed;
    layout.meta.dressed = wanted;
    plot.setAttribute("role", "img");
    plot.setAttribute("aria-label", layout.meta.alt);
    const changes = { template: themes[scheme()] };
    if (narrow.matches && first) Object.assign(changes, layout.meta.narrow, { "font.size": 11 });
    window.Plotly.relayout(plot, changes);
  }

  function dressAll() {
    for (const plot of document.querySelectorAll(".js-plotly-plot")) dress(plot);
  }

  let waiting = 0;
  function soon() {
    cancelAnimationFrame(waiting);
    waiting = requestAnimationFrame(dressAll);
  }

  function start() {
    new MutationObserver(soon).observe(document.body, {
      childList: true, subtree: true, attributes: true, attributeFilter: ["class"],
    });
    narrow.addEventListener("change", soon);
    soon();
  }

  if (document.body) start(); else addEventListener("DOMContentLoaded", start);
})();
