// Answers arrive on a stream that Gradio's server closes when a tab waits for none. Its client can be told so after it
// has sent the next request: it then takes the stream for open, and that answer never comes. Here the client keeps one
// stream for good, and a connection is opened behind it whenever an answer is awaited.
{
  const send = window.fetch.bind(window);
  const awaited = new Set(); // events that were sent and not yet answered
  let stream = null; // what the client reads: { request, to }
  let listening = false;

  const take = (message) => {
    const line = message.replace(/^data: ?/, "");
    const { msg, event_id } = line.startsWith("{") ? JSON.parse(line) : {};
    if (msg === "process_completed") awaited.delete(event_id);
    return msg === "close_stream";
  };

  // Passes on what one connection brings; true if the server closed it since it had nothing more to say.
  const pass = async ({ request, to }) => {
    const answer = await send(request.clone());
    if (!answer.ok) throw new Error(`${answer.status} ${answer.statusText}`);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    const encoder = new TextEncoder();
    for (let text = ""; ; ) {
      const { done, value } = await reader.read();
      if (done) return false;
      const messages = (text + value).split("\n\n");
      text = messages.pop();
      for (const message of messages) {
        if (take(message)) return true;
        to.enqueue(encoder.encode(`${message}\n\n`));
      }
    }
  };

  const listen = async () => {
    if (listening || !stream) return;
    const current = stream;
    listening = true;
    try {
      while (awaited.size && stream === current) {
        if (await pass(current)) continue;
        stream = null;
        awaited.clear(); // they went with the connection
        current.to.close();
      }
    } catch (error) {
      if (stream === current) stream = null;
      awaited.clear();
      current.to.error(error);
    } finally {
      listening = false;
    }
    if (awaited.size && stream) listen();
  };

  const open = (request) => {
    const body = new ReadableStream({
      start: (to) => {
        const opened = { request, to };
        stream = opened;
        request.signal.addEventListener("abort", () => {
          if (stream === opened) stream = null;
        });
      },
    });
    listen();
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  };

  window.fetch = async (...args) => {
    const path = new URL(args[0].url ?? args[0], window.location.href).pathname;
    if (path.endsWith("/queue/data")) return open(new Request(...args));
    const answer = await send(...args);
    if (path.endsWith("/queue/join") && answer.ok) {
      awaited.add((await answer.clone().json()).event_id);
      listen();
    }
    return answer;
  };
}
