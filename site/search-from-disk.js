/*
 * Excerpts of search results for a site that is opened from a disk. Sphinx's search fetches each page that it has found
 * for its excerpt, and browsers refuse that on file://. There the texts come from a script: `search-texts.js`, which
 * hooks.py writes.
 */
"use strict";

if (window.location.protocol === "file:") {
  const texts = new Promise((resolve) => {
    // search-texts.js calls this.
    window.setSearchTexts = resolve;
  });
  const script = document.createElement("script");
  script.src = "search-texts.js";
  document.head.append(script);
  window.fetch = async (address) => {
    const page = address.replace(/^\.\//, "").replace(/\.html$/, "");
    return { text: async () => (await texts)[page] ?? "" };
  };
}
