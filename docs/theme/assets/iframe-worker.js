/* A browser starts no worker for a page that is opened from a disk. There the script of the search runs in a hidden frame,
   which has the page's own origin, and messages are passed by hand. */
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.srcdoc = "<!doctype html><body></body>"
      this.frame.onload = () => this.load(address)
      document.body.append(this.frame)
    }

    load(address) {
      const inside = this.frame.contentWindow
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inside.document.createElement("script")
      script.src = address
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        for (const data of waiting) this.postMessage(data)
      }
      script.onerror = () => this.dispatchEvent(new Event("error"))
      inside.document.body.append(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data }))
    }

    terminate() {
      this.frame.remove()
    }
  }
}
