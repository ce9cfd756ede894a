"use strict";
// What reports and the web app share: buttons that copy the command before them.
(() => {
  document.documentElement.classList.add("scripted");
  document.addEventListener("click", async (event) => {
    const button = event.target.closest?.("button.copy");
    if (!button) return;
    const code = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      // Not every browser lets a file write to the clipboard: the command is selected instead.
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
})();
