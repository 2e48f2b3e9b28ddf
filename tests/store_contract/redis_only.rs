//! What only Redis can do to us.
