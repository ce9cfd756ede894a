// On a phone, lines of code wrap; where columns stand below each other, the block scrolls instead. What
// scrolls can be reached by keyboard.
addEventListener("load", () => {
  for (const code of document.querySelectorAll("pre > code")) {
    const rows = code.textContent.split("\n").filter((line) => !line.startsWith("$") && /\S {2,}\S/.test(line));
    const columns = code.closest(".language-console, .language-text") && rows.length > 1;
    code.classList.add(columns ? "scrolls" : "wraps");
  }
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]")) {
    if (each.scrollWidth > each.clientWidth) each.tabIndex = 0;
  }
});
