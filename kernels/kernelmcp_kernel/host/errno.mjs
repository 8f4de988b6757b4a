// Errors of Node and of Emscripten's file systems: as an errno for the guest, and as words for a person.

// Emscripten's errno numbers are WASI's.
export const [EACCES, EBUSY, EINVAL, EIO, ENOSPC, EROFS] = [2, 10, 28, 29, 51, 69];
/** @type {Record<string, number>} */
const ERRNO = {
  ...{ EACCES, EBUSY, EINVAL, EIO, ENOSPC, EROFS, EAGAIN: 6, EBADF: 8, EEXIST: 20, EFBIG: 22, EISDIR: 31, ELOOP: 32 },
  ...{ EMFILE: 33, ENAMETOOLONG: 37, ENOENT: 44, ENOTDIR: 54, ENOTEMPTY: 55, EPERM: 63, ESPIPE: 70, EXDEV: 75 },
  // What the permission model answers: for a path, or for a call that it has switched off altogether (fsync, fchmod).
  ERR_ACCESS_DENIED: EACCES,
};

/** The errno of an error that Node has thrown; undefined for other errors. @param {any} error
 * @returns {number | undefined} */
export function errnoOf(error) {
  const code = error instanceof Error ? /** @type {any} */ (error).code : undefined;
  if (typeof code !== "string") return undefined;
  return ERRNO[code] ?? (code.startsWith("ERR_") ? EINVAL : EIO);
}

/** What went wrong, in words. Emscripten's own errors have no message, only a number. @param {any} error */
export function describe(error) {
  if (error?.name === "ErrnoError") {
    const name = Object.keys(ERRNO).find((key) => ERRNO[key] === error.errno);
    return `the file system answered ${name ?? `error ${error.errno}`}`;
  }
  return error instanceof Error ? error.message : String(error);
}

/** WebAssembly's imports for files: an error that crosses WebAssembly would end the guest, so what Node throws becomes an
 * errno. Replaces them in place. @param {Record<string, any>} env */
export function answerErrors(env) {
  for (const [name, call] of Object.entries(env)) {
    const isSystemCall = /^(__syscall_|_(mmap|munmap|msync)_js$)/.test(name);
    if (typeof call !== "function" || !(isSystemCall || /^fd_/.test(name))) continue;
    const sign = isSystemCall ? -1 : 1; // WASI's own calls answer with the number itself
    const answering = (/** @type {any[]} */ ...values) => {
      try {
        return call(...values);
      } catch (error) {
        const errno = errnoOf(error);
        if (errno === undefined) throw error;
        return sign * errno;
      }
    };
    env[name] = Object.assign(answering, { sig: call.sig });
  }
}
