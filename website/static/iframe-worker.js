// Browsers refuse workers in pages opened from a folder (file://). There, the search runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class {
    constructor(url) {
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => setTimeout(() => this.onmessage?.({ data: structuredClone(data) }));
      this.loaded = new Promise((resolve, reject) => {
        const script = inside.document.createElement("script");
        script.src = url;
        script.onload = () => resolve(inside);
        script.onerror = reject;
        inside.document.body.append(script);
      });
    }
    postMessage(data) {
      this.loaded.then(
        (inside) => inside.onmessage({ data: structuredClone(data) }),
        () => this.onerror?.(new Event("error")),
      );
    }
    terminate() {
      this.frame.remove();
    }
  };
}
