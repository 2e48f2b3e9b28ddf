//! Randomness as a port, so that a simulation can replay it.

use super::ids::Nonce;
use parking_lot::Mutex;
use std::fmt::Debug;

/// A source of random bits.
pub trait Entropy: Send + Sync + Debug {
    /// 128 fresh random bits.
    fn next(&self) -> u128;

    /// A fresh nonce.
    fn nonce(&self) -> Nonce {
        Nonce(self.next().to_be_bytes())
    }
}

const POOL: usize = 4096;

/// The operating system's generator, read in blocks: tokens are unguessable because of it.
pub struct OsEntropy {
    pool: Mutex<(Box<[u8; POOL]>, usize)>,
}

impl Debug for OsEntropy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OsEntropy")
    }
}

impl Default for OsEntropy {
    fn default() -> Self {
        Self { pool: Mutex::new((Box::new([0; POOL]), POOL)) }
    }
}

impl Entropy for OsEntropy {
    /// # Panics
    /// If the operating system has no randomness: there is no safe way on.
    fn next(&self) -> u128 {
        let mut pool = self.pool.lock();
        if pool.1 + 16 > POOL {
            #[expect(clippy::expect_used, reason = "without randomness tokens could be guessed")]
            getrandom::fill(&mut pool.0[..]).expect("the operating system gives random bytes");
            pool.1 = 0;
        }
        let mut bytes = [0; 16];
        let at = pool.1;
        bytes.copy_from_slice(&pool.0[at..at + 16]);
        // What was handed out does not stay in memory.
        pool.0[at..at + 16].fill(0);
        pool.1 += 16;
        u128::from_be_bytes(bytes)
    }
}

/// A seeded generator (splitmix64) for simulations and tests; never for tokens of a real store.
#[derive(Debug)]
pub struct SeededEntropy(Mutex<u64>);

impl SeededEntropy {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(seed))
    }

    /// 64 random bits.
    pub fn next_u64(&self) -> u64 {
        let mut s = self.0.lock();
        *s = s.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = *s;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

impl Entropy for SeededEntropy {
    fn next(&self) -> u128 {
        (u128::from(self.next_u64()) << 64) | u128::from(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn nonces_do_not_repeat_across_blocks() {
        let e = OsEntropy::default();
        let seen: BTreeSet<_> = (0..1_000).map(|_| e.next()).collect();
        assert_eq!(seen.len(), 1_000);
    }

    #[test]
    fn a_seed_gives_the_same_numbers_again() {
        let (a, b) = (SeededEntropy::new(7), SeededEntropy::new(7));
        assert_eq!((a.next(), a.next()), (b.next(), b.next()));
    }
}
