// On a phone, lines of code wrap; where columns stand below each other, the block scrolls instead. What
// scrolls can be reached by keyboard.
addEventListener("load", () => {
  for (const code of document.querySelectorAll("pre > code")) {
    const rows = code.textContent.split("\n").filter((line) => !line.startsWith("$") && /\S {2,}\S/.test(line));
    if (!code.closest(".language-console") || rows.length < 2) code.classList.add("wraps");
  }
  for (const each of document.querySelectorAll(".md-typeset__scrollwrap, math[display=block]")) each.tabIndex = 0;
});
