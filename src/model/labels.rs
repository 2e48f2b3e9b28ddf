//! Labels of workers and of the tasks that ask for them, and the names of the queues that follow from both.
//!
//! ```text
//! label   key "=" value                  both 1 to 64 letters, digits, '.', '_' or '-'
//! labels  label (";" label)*             at most 8, by key; none is the empty text
//! queue   type | type ";" labels         one for each type and set of labels that tasks ask for
//! ```
//!
//! Invariants
//! - Equal sets have equal text: sorted by key, each key once.
//! - A queue without labels is written as its type alone, and neither making nor copying its name allocates.

use super::ids::{InvalidName, TaskType};
use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Most labels of a task or of a worker.
pub const LABELS_MAX: usize = 8;
/// Longest key and longest value of a label.
pub const LABEL_PART_MAX: usize = 64;
/// What a key and a value may be.
pub const LABEL_RULE: &str = "1 to 64 letters, digits, '.', '_' or '-'";

/// A set of labels, each a key with a value. See the module for its text.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Labels(Option<Arc<str>>);

/// Whether `text` may be the key or the value of a label.
pub fn is_label_part(text: &str) -> bool {
    (1..=LABEL_PART_MAX).contains(&text.len())
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-'))
}

impl Labels {
    /// No labels.
    pub const NONE: Self = Self(None);
    /// No labels, to be borrowed.
    pub(crate) const NONE_REF: &'static Self = {
        static NONE: Labels = Labels::NONE;
        &NONE
    };

    /// The set of these labels. `None` if a key or a value breaks the rule, a key comes twice or there are too many.
    pub fn new<'a>(pairs: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Self> {
        let mut pairs: Vec<(&str, &str)> = pairs.into_iter().collect();
        pairs.sort_unstable();
        let valid = pairs.iter().all(|(key, value)| is_label_part(key) && is_label_part(value));
        let once = pairs.windows(2).all(|two| two[0].0 != two[1].0);
        if !valid || !once || pairs.len() > LABELS_MAX {
            return None;
        }
        if pairs.is_empty() {
            return Some(Self::NONE);
        }
        let texts: Vec<String> = pairs.iter().map(|(key, value)| format!("{key}={value}")).collect();
        Some(Self(Some(texts.join(";").into())))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.iter().count()
    }

    /// Key and value of each, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let text = self.0.as_deref().unwrap_or_default();
        text.split(';').filter_map(|label| label.split_once('='))
    }

    /// Whether all of `wanted` are among these.
    pub fn include(&self, wanted: &Self) -> bool {
        match (&wanted.0, &self.0) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(wanted), Some(own)) => {
                // Both are sorted.
                let mut own = own.split(';');
                wanted.split(';').all(|label| own.any(|o| o == label))
            }
        }
    }

    /// As text: `gpu=true;region=eu`.
    pub fn as_str(&self) -> &str {
        self.0.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Labels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A ready queue: what waits for workers of one type that have these labels. In the store there is one in each
/// partition.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueName {
    /// The type.
    pub task_type: TaskType,
    /// What every task in it asks for.
    pub labels: Labels,
}

impl QueueName {
    /// As text, the way stores and hints have it.
    pub fn to_text(&self) -> Cow<'_, str> {
        match &self.labels.0 {
            None => Cow::Borrowed(self.task_type.as_str()),
            Some(_) => Cow::Owned(self.to_string()),
        }
    }
}

impl From<TaskType> for QueueName {
    fn from(task_type: TaskType) -> Self {
        Self { task_type, labels: Labels::NONE }
    }
}

impl fmt::Display for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.task_type.as_str())?;
        if let Some(labels) = &self.labels.0 {
            write!(f, ";{labels}")?;
        }
        Ok(())
    }
}

impl fmt::Debug for QueueName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

impl FromStr for QueueName {
    type Err = InvalidName;

    /// Reads what [`fmt::Display`] writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, InvalidName> {
        let Some((task_type, labels)) = text.split_once(';') else {
            return TaskType::new(text).map(Self::from);
        };
        let pairs: Option<Vec<_>> = labels.split(';').map(|label| label.split_once('=')).collect();
        let read = pairs.and_then(Labels::new).filter(|read| read.as_str() == labels);
        let Some(labels) = read else {
            return Err(InvalidName {
                what: "queue",
                got: text.chars().take(64).collect(),
                rule: "a task type, then its labels by key: type;key=value;key=value",
            });
        };
        Ok(Self { task_type: TaskType::new(task_type)?, labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(text: &str) -> Labels {
        Labels::new(text.split_whitespace().filter_map(|l| l.split_once('='))).unwrap()
    }

    #[test]
    fn a_set_is_written_in_one_way() {
        assert_eq!(labels("region=eu gpu=true"), labels("gpu=true region=eu"));
        assert_eq!(labels("region=eu gpu=true").as_str(), "gpu=true;region=eu");
        assert_eq!(labels("a-b=1 a=2").iter().collect::<Vec<_>>(), [("a", "2"), ("a-b", "1")]);
        assert_eq!((labels(""), labels("").len(), labels("a=1 b=2").len()), (Labels::NONE, 0, 2));
    }

    #[test]
    fn what_breaks_the_rule_is_no_set() {
        let long = "x".repeat(65);
        for bad in
            [("", "a"), ("a", ""), ("a b", "c"), ("a", "b;c"), ("a", "b=c"), (&long, "a"), ("a", &long)]
        {
            assert_eq!(Labels::new([bad]), None, "{bad:?}");
        }
        assert_eq!(Labels::new([("a", "1"), ("a", "2")]), None);
        let many: Vec<String> = (0..9).map(|n| format!("k{n}")).collect();
        assert_eq!(Labels::new(many.iter().map(|k| (k.as_str(), "v"))), None);
        assert!(Labels::new(many[1..].iter().map(|k| (k.as_str(), "v"))).is_some());
    }

    #[test]
    fn a_worker_fits_what_asks_for_no_more_than_it_has() {
        let worker = labels("gpu=true region=eu zone=1");
        for fits in ["", "gpu=true", "zone=1", "gpu=true zone=1", "gpu=true region=eu zone=1"] {
            assert!(worker.include(&labels(fits)), "{fits}");
        }
        for not in ["gpu=false", "gpu=tru", "disk=ssd", "region=eu zone=2", "gpu=true region=eu zone=1 a=b"] {
            assert!(!worker.include(&labels(not)), "{not}");
        }
        assert!(!Labels::NONE.include(&labels("gpu=true")));
        assert!(Labels::NONE.include(&Labels::NONE));
    }

    #[test]
    fn a_queue_without_labels_is_called_as_its_type() {
        let plain = QueueName::from(TaskType::new("ship-item").unwrap());
        assert_eq!(plain.to_string(), "ship-item");
        assert_eq!("ship-item".parse(), Ok(plain.clone()));
        let labelled = QueueName { labels: labels("region=eu gpu=true"), ..plain };
        assert_eq!(labelled.to_string(), "ship-item;gpu=true;region=eu");
        assert_eq!(labelled.to_string().parse(), Ok(labelled));
        for bad in ["", "a;", "a;b", "a;b=", "a;c=1;b=2", "a;b=1;b=1", "a b;c=1", ";a=1", "a;b=1;"] {
            assert!(bad.parse::<QueueName>().is_err(), "{bad:?}");
        }
    }
}
