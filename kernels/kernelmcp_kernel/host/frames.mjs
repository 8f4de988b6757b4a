// The pipe to the kernel process: 4 bytes of length (little endian), then JSON.
import fs from "node:fs";
import net from "node:net";

export const MAX_FRAME_BYTES = 64 * 1024 * 1024;

/** Write one frame. The descriptor blocks, which is the backpressure: a guest cannot outrun its kernel process.
 * @param {number} fd @param {string} text */
export function writeFrame(fd, text) {
  const length = Buffer.byteLength(text);
  const frame = Buffer.allocUnsafe(4 + length);
  frame.writeUInt32LE(length, 0);
  frame.write(text, 4);
  let done = 0;
  while (done < frame.length) {
    try {
      done += fs.writeSync(fd, frame, done);
    } catch (error) {
      if (/** @type {NodeJS.ErrnoException} */ (error).code !== "EAGAIN") throw error;
    }
  }
}

/** Call `handle` with each frame's text, until the pipe ends.
 * @param {number} fd @param {(text: string) => void} handle @param {() => void} end */
export function readFrames(fd, handle, end) {
  /** @type {Buffer[]} */
  let chunks = [];
  let size = 0;
  let wanted = 4; // bytes until there is something to do: a large frame is put together once, not at every piece
  // Not fs.createReadStream: its blocking read in the thread pool keeps the process from ending.
  const socket = new net.Socket({ fd, readable: true, writable: false });
  socket.on("data", (chunk) => {
    chunks.push(chunk);
    size += chunk.length;
    if (size < wanted) return;
    let buffer = chunks.length === 1 ? chunk : Buffer.concat(chunks);
    for (wanted = 4; size >= wanted; wanted = 4) {
      const length = buffer.readUInt32LE(0);
      if (length > MAX_FRAME_BYTES) throw new Error("oversized frame");
      wanted = 4 + length;
      if (size < wanted) break;
      const text = buffer.toString("utf8", 4, wanted);
      buffer = buffer.subarray(wanted);
      size -= wanted;
      handle(text);
    }
    chunks = size ? [buffer] : [];
  });
  socket.on("end", end);
  socket.on("error", end);
}
