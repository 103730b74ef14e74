/* Search from file://: browsers start no worker there, so that its script runs in a hidden frame. The theme's offline
   plugin would load such a class from the network. */
if (location.protocol === "file:") {
  self.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.appendChild(frame)
      this.frame = frame
      this.inside = frame.contentWindow
      addEventListener("message", event => {
        if (event.source === this.inside) {
          const message = new MessageEvent("message", { data: event.data })
          this.dispatchEvent(message)
          if (this.onmessage) this.onmessage(message)
        }
      })
      const doc = this.inside.document
      doc.open()
      doc.write(
        "<script>" +
          "const outside = parent.postMessage.bind(parent);" +
          "postMessage = data => outside(data, '*');" +
          "importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise(resolve => {" +
          "const script = document.createElement('script'); script.src = url; script.onload = resolve;" +
          "document.body.appendChild(script) })), Promise.resolve())" +
          "</" + "script><body><script src='" + new URL(url, location) + "' onload='frameElement.dispatchEvent(new Event(\"ready\"))'></" + "script>"
      )
      this.ready = new Promise(resolve => frame.addEventListener("ready", resolve, { once: true }))
      doc.close()
    }
    postMessage(data) {
      this.ready.then(() => {
        this.inside.dispatchEvent(new MessageEvent("message", { data, source: parent }))
      })
    }
    terminate() {
      this.frame.remove()
    }
  }
  self.Worker = self.IFrameWorker
}
