//! "Did you mean": the known word nearest to what somebody wrote.

/// ` (did you mean 'x'?)`, or nothing if no word is near enough.
pub(crate) fn did_you_mean<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> String {
    match nearest(word, known) {
        Some(near) => format!(" (did you mean '{near}'?)"),
        None => String::new(),
    }
}

/// The nearest of `known`, if it takes at most a third of its letters (at least one, at most three) to get there.
fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    if word.len() > 64 {
        return None;
    }
    known
        .into_iter()
        .filter(|k| k.len() <= 64 && k.len().abs_diff(word.len()) <= 3)
        .map(|k| (distance(&word.to_ascii_lowercase(), k), k))
        .filter(|(d, k)| *d <= (k.len() / 3).clamp(1, 3))
        .min()
        .map(|(_, k)| k)
}

/// Insertions, deletions, replacements and swaps of neighbours between two words.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let cost = usize::from(a[i - 1] != b[j - 1]);
                let mut best = (rows[i - 1][j] + 1).min(rows[i][j - 1] + 1).min(rows[i - 1][j - 1] + cost);
                if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                    best = best.min(rows[i - 2][j - 2] + 1);
                }
                best
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_offered_and_far_ones_are_not() {
        assert_eq!(did_you_mean("fetchh", ["fetch", "store"]), " (did you mean 'fetch'?)");
        assert_eq!(did_you_mean("need", ["needs", "when"]), " (did you mean 'needs'?)");
        assert_eq!(did_you_mean("Timeout", ["timeout"]), " (did you mean 'timeout'?)");
        assert_eq!(did_you_mean("tpye", ["type"]), " (did you mean 'type'?)");
        assert_eq!(did_you_mean("zzz", ["type", "if"]), "");
    }
}
