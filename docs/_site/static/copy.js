// A button in each block of code that copies it, without prompts and output of an interpreter.
addEventListener("DOMContentLoaded", () => {
  if (!navigator.clipboard) return;
  for (const block of document.querySelectorAll("div.highlight")) {
    const button = document.createElement("button");
    button.className = "copy";
    button.type = "button";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
      const text = block.querySelector("pre").textContent;
      const lines = text.split("\n").filter((line) => /^(>>>|\.\.\.)( |$)/.test(line));
      await navigator.clipboard.writeText(lines.length ? lines.map((line) => line.slice(4)).join("\n") : text);
      button.textContent = "Copied";
      setTimeout(() => (button.textContent = "Copy"), 2000);
    });
    block.append(button);
  }
});
