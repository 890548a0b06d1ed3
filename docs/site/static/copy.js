// SPDX-License-Identifier: Apache-2.0
// A button at each block of code that copies the block. Output (text, console) has none.
addEventListener("DOMContentLoaded", () => {
    if (!navigator.clipboard) return; // a page that was not loaded over HTTPS, or from a file
    for (const block of document.querySelectorAll("div.highlight > pre")) {
        const language = block.parentElement.parentElement.className;
        if (/highlight-(text|console|none|default)\b/.test(language)) continue;
        const text = block.textContent;
        const button = document.createElement("button");
        button.className = "copy";
        button.type = "button";
        button.textContent = "Copy";
        button.addEventListener("click", async () => {
            await navigator.clipboard.writeText(text);
            button.textContent = "Copied";
            setTimeout(() => { button.textContent = "Copy"; }, 2000);
        });
        block.parentElement.append(button);
    }
});
