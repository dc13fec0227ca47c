// What is looked for in a page; each function returns descriptions of what is wrong.
"use strict";
(function () {
  const LEAST_OF_TEXT = 4.5; // Least contrasts of WCAG 2.2, level AA.
  const LEAST_OF_LINES = 3;

  function described(element, text) {
    const kind = element.getAttribute("class") || "";
    return [element.localName, kind, (text || element.textContent).trim().slice(0, 40)].join(" ");
  }
  function isShown(element) {
    const box = element.getBoundingClientRect();
    return box.width + box.height > 0;
  }
  function colour(text) {
    const numbers = text.match(/[\d.]+/g).map(Number);
    return numbers.length < 4 ? [...numbers, 1] : numbers;
  }
  function luminance(rgb) {
    const [r, g, b] = rgb.map(function (value) {
      const share = value / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }
  function ground(element) {
    for (let one = element; one; one = one.parentElement) {
      const found = colour(getComputedStyle(one).backgroundColor);
      if (found[3] === 1) return found;
    }
    // The canvas: dark only where the page supports dark colours.
    const dark = matchMedia("(prefers-color-scheme: dark)").matches;
    const root = getComputedStyle(document.documentElement).colorScheme;
    const meta = document.querySelector("meta[name=color-scheme]");
    const known = root === "normal" && meta ? meta.content : root;
    return dark && known.includes("dark") ? [18, 18, 18] : [255, 255, 255];
  }
  function contrast(element, text) {
    const values = [text, ground(element)].map(function (one) { return luminance(one.slice(0, 3)); });
    return (Math.max(...values) + 0.05) / (Math.min(...values) + 0.05);
  }

  window.lookedFor = {
    open: function () {
      document.querySelectorAll("details").forEach(function (one) { one.open = true; });
    },
    cutOff: function () {
      const width = document.documentElement.clientWidth, found = [];
      if (document.documentElement.scrollWidth > width) found.push("the page scrolls sideways");
      document.querySelectorAll("body *").forEach(function (one) {
        if (!isShown(one) || one.closest(".scroll table, nav ul > *, .tip")) return;
        const frame = one.closest("figure svg") && one.closest("figure").getBoundingClientRect();
        const box = one.getBoundingClientRect();
        const left = frame ? frame.left : 0, right = frame ? frame.right : width;
        if (box.left < left - 1 || box.right > right + 1) found.push(described(one));
      });
      return found;
    },
    faintText: function () {
      const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
      while (walker.nextNode()) {
        const text = walker.currentNode.data, parent = walker.currentNode.parentElement;
        if (!text.trim() || !isShown(parent) || parent.closest("title, script, :disabled")) continue;
        const style = getComputedStyle(parent);
        const ratio = contrast(parent, colour(parent.closest("svg") ? style.fill : style.color));
        if (ratio < LEAST_OF_TEXT) found.push(described(parent, text) + " " + ratio.toFixed(1));
      }
      return found;
    },
    chartsNotOnce: function () {
      return Array.from(document.querySelectorAll("figure")).filter(function (figure) {
        const all = Array.from(figure.querySelectorAll("svg"));
        return isShown(figure) && all.filter(isShown).length !== 1;
      }).map(function (one) { return described(one); });
    },
    faintLines: function () {
      const found = [];
      document.querySelectorAll("figure .plot path, figure .marks use").forEach(function (one) {
        const style = getComputedStyle(one);
        const ratios = [style.stroke, style.fill].filter(function (value) {
          return value !== "none";
        }).map(function (value) { return contrast(one, colour(value)); });
        if (isShown(one) && Math.max(0, ...ratios) < LEAST_OF_LINES) found.push(described(one));
      });
      return found;
    },
    controls: function () {
      const all = document.querySelectorAll("a[href], button, input, summary, [tabindex='0']");
      return Array.from(all).filter(function (one) { return !one.disabled && isShown(one); });
    },
    showsItsFocus: function (one) {
      const styles = [getComputedStyle(one), getComputedStyle(one, "::before")];
      const drawn = Array.from(one.querySelectorAll("path, use"));
      return styles.some(function (style) { return style.outlineStyle !== "none"; }) ||
        drawn.some(function (part) { return getComputedStyle(part).strokeWidth === "3px"; });
    },
  };
})();
