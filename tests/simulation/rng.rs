//! Randomness of a seed, split into streams: each part of the world draws from its own, so that one draw more
//! in one part leaves the others as they were.

/// A splitmix64 stream.
#[derive(Debug, Clone)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Self(seed ^ 0x5eed_0000_d0b3_a7e1);
        rng.bits();
        rng
    }

    /// A stream of its own for `part`.
    pub(crate) fn split(&self, part: &str, number: u64) -> Self {
        let mut h = self.0 ^ number.wrapping_mul(0xff51_afd7_ed55_8ccd);
        for b in part.bytes() {
            h = (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
        Self::new(h)
    }

    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From 0 to `n - 1`; 0 if `n` is 0.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        if n == 0 { 0 } else { self.bits() % n }
    }

    pub(crate) fn range(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to.saturating_sub(from) + 1)
    }

    pub(crate) fn chance(&mut self, p: f64) -> bool {
        // Drawn even if p is 0, so that a profile with less of one fault keeps the rest.
        ((self.bits() >> 11) as f64 / (1u64 << 53) as f64) < p
    }

    pub(crate) fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len() as u64) as usize]
    }

    pub(crate) fn millis(&mut self, from: u64, to: u64) -> std::time::Duration {
        std::time::Duration::from_millis(self.range(from, to))
    }
}
