// Why a state is refused.

/** Raised for a session that cannot be saved, or a state that cannot be loaded: each reason is a sentence for a person. */
export class StateError extends Error {
  /** @param {string[]} reasons */
  constructor(...reasons) {
    super(reasons.join("; "));
    this.reasons = reasons;
  }
}
