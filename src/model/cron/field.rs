//! One field of a pattern: a set of small numbers.

/// What a field counts.
#[derive(Debug)]
pub(super) struct Kind {
    name: &'static str,
    low: u32,
    high: u32,
    /// Names of the values from `low` on.
    names: &'static [&'static str],
}

pub(super) static MINUTES: Kind = Kind { name: "minute", low: 0, high: 59, names: &[] };
pub(super) static HOURS: Kind = Kind { name: "hour", low: 0, high: 23, names: &[] };
pub(super) static DAYS: Kind = Kind { name: "day of month", low: 1, high: 31, names: &[] };
pub(super) static MONTHS: Kind = Kind {
    name: "month",
    low: 1,
    high: 12,
    names: &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
};
/// Sunday is 0 and, at the end of a range, 7.
pub(super) static WEEKDAYS: Kind =
    Kind { name: "day of week", low: 0, high: 7, names: &["sun", "mon", "tue", "wed", "thu", "fri", "sat"] };

/// The values a field takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Field {
    bits: u64,
    /// It is `*`.
    pub(super) any: bool,
    /// It goes by `*` or a step; else it names its values.
    pub(super) open: bool,
}

impl Field {
    /// Reads a field; the error says what is wrong and how to mend it.
    pub(super) fn parse(kind: &Kind, text: &str) -> Result<Self, String> {
        let mut bits = 0;
        for item in text.split(',') {
            bits |= item_bits(kind, item).map_err(|why| {
                let shown: String = text.chars().take(40).collect();
                format!("{} '{shown}': {why}", kind.name)
            })?;
        }
        if kind.high == 7 {
            bits = (bits | (bits >> 7)) & 0x7f;
        }
        Ok(Self { bits, any: text == "*", open: text.contains(['*', '/']) })
    }

    pub(super) fn has(&self, value: u32) -> bool {
        value < 64 && self.bits & (1 << value) != 0
    }

    /// The smallest value.
    pub(super) fn first(&self) -> u32 {
        self.bits.trailing_zeros()
    }

    /// The largest value.
    pub(super) fn last(&self) -> u32 {
        self.bits.ilog2()
    }

    /// The smallest value from `from` on.
    pub(super) fn from(&self, from: u32) -> Option<u32> {
        let rest = if from < 64 { self.bits & (u64::MAX << from) } else { 0 };
        (rest != 0).then(|| rest.trailing_zeros())
    }

    /// The largest value up to `to`.
    pub(super) fn up_to(&self, to: u32) -> Option<u32> {
        let rest = if to < 63 { self.bits & ((1 << (to + 1)) - 1) } else { self.bits };
        (rest != 0).then(|| rest.ilog2())
    }

    /// All values, in order.
    pub(super) fn values(&self) -> impl Iterator<Item = u32> + '_ {
        (0..64).filter(|v| self.has(*v))
    }
}

fn item_bits(kind: &Kind, item: &str) -> Result<u64, String> {
    if item.is_empty() {
        return Err("nothing stands at a comma".into());
    }
    if item == "?" {
        return Err("'?' is not read; write '*'".into());
    }
    let (range, step) = match item.split_once('/') {
        Some((range, step)) => {
            let size = kind.high.min(if kind.high == 7 { 6 } else { 59 }) - kind.low + 1;
            let step: u32 =
                number(step).ok_or_else(|| format!("'{step}' is not a step; write a whole number"))?;
            if step == 0 || step > size {
                return Err(format!("a step of {step} is not from 1 to {size}"));
            }
            (range, Some(step))
        }
        None => (item, None),
    };
    let (low, high) = if range == "*" {
        (kind.low, if kind.high == 7 { 6 } else { kind.high })
    } else if let Some((low, high)) = range.split_once('-') {
        let (low, mut high) = (value(kind, low)?, value(kind, high)?);
        if kind.high == 7 && high == 0 && low > 0 {
            high = 7;
        }
        if low > high {
            return Err(format!("the range '{range}' runs backwards; write two ranges with a comma"));
        }
        (low, high)
    } else {
        let low = value(kind, range)?;
        (low, if step.is_none() { low } else { kind.high.min(if kind.high == 7 { 6.max(low) } else { 59 }) })
    };
    Ok((low..=high).step_by(step.unwrap_or(1) as usize).fold(0, |bits, v| bits | (1 << v)))
}

fn number(text: &str) -> Option<u32> {
    ((1..=4).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn value(kind: &Kind, text: &str) -> Result<u32, String> {
    let names = if kind.names.is_empty() {
        String::new()
    } else {
        format!(" or a name from {} to {}", kind.names[0], kind.names[kind.names.len() - 1])
    };
    let rule = format!("write {} to {}{names}", kind.low, kind.high);
    if let Some(n) = number(text) {
        if (kind.low..=kind.high).contains(&n) {
            return Ok(n);
        }
        return Err(format!("{n} is out of range; {rule}"));
    }
    if let Some(at) = kind.names.iter().position(|n| n.eq_ignore_ascii_case(text)) {
        return Ok(kind.low + at as u32);
    }
    Err(format!("'{text}' is not a value; {rule}"))
}
