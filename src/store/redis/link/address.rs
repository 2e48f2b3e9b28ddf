//! Where Redis is, as a user writes it.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/db]                   rediss:// with TLS; valkey:// and valkeys:// alike
//! redis+unix:///path?db=N&user=U&pass=P                        or unix://…
//! redis+sentinel://[user:password@]host:port,…/MASTER[/db]     rediss+sentinel://
//! redis+cluster://[user:password@]host:port,…                  rediss+cluster://
//! ```
//!
//! Invariants
//! - An address is never shown: neither as a whole nor its user or password. `Debug` shows its form alone.
//! - What is not understood is refused, never ignored.
//!
//! User and password in an address are those of Redis; Sentinels have their own, see [`super::Access`].

use std::fmt;
use std::path::PathBuf;

/// The port of Redis unless told otherwise.
const PORT: u16 = 6_379;
/// The port of Sentinel unless told otherwise.
const SENTINEL_PORT: u16 = 26_379;
/// Nodes that an address may name.
const NODES_MAX: usize = 64;

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Secret(pub(in crate::store::redis) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// One place that takes connections.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(in crate::store::redis) enum Endpoint {
    /// Host and port.
    Tcp(String, u16),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// What stands at an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::store::redis) enum Place {
    /// One Redis.
    Node(Endpoint),
    /// Sentinels that know where the primary called `master` is.
    Sentinels {
        /// Where to ask, in this order.
        sentinels: Vec<Endpoint>,
        /// What they call it.
        master: String,
    },
    /// A Redis Cluster, by some of its nodes.
    Cluster(Vec<Endpoint>),
}

/// An address.
#[derive(Clone, PartialEq, Eq)]
pub(in crate::store::redis) struct Address {
    pub(in crate::store::redis) place: Place,
    pub(in crate::store::redis) tls: bool,
    pub(in crate::store::redis) user: Option<String>,
    pub(in crate::store::redis) password: Option<Secret>,
    pub(in crate::store::redis) db: u32,
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = match self.place {
            Place::Node(Endpoint::Tcp(..)) => "a Redis",
            Place::Node(Endpoint::Unix(_)) => "a Redis at a socket",
            Place::Sentinels { .. } => "Sentinels",
            Place::Cluster(_) => "a cluster",
        };
        f.debug_struct("Address").field("of", &form).field("tls", &self.tls).finish_non_exhaustive()
    }
}

impl Address {
    /// Reads an address.
    ///
    /// # Errors
    /// What is wrong with it, without telling it.
    pub(in crate::store::redis) fn parse(url: &str) -> Result<Self, String> {
        let (scheme, rest) =
            url.split_once("://").ok_or("it must begin with redis:// or another scheme of Redis")?;
        let (family, kind) = scheme.split_once('+').unwrap_or((scheme, ""));
        let (tls, kind) = match (family, kind) {
            ("unix", "") => (false, "unix"),
            ("redis" | "valkey", kind) => (false, kind),
            ("rediss" | "valkeys", kind) => (true, kind),
            _ => {
                return Err("it must begin with redis://, rediss://, unix://, redis+sentinel:// or \
                            redis+cluster://"
                    .into());
            }
        };
        if kind == "unix" {
            return if tls { Err("a socket in the file system has no TLS".into()) } else { socket(rest) };
        }
        if rest.contains(['?', '#']) {
            return Err(
                "it takes no options after ? or #; encode these signs in a password as %3F and %23".into()
            );
        }
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (user, password) = match login {
            None => (None, None),
            Some(login) => {
                let (user, password) = login.split_once(':').map_or((login, None), |(u, p)| (u, Some(p)));
                let user = decoded(user)?;
                let password = password.map(decoded).transpose()?.filter(|p| !p.is_empty());
                (Some(user).filter(|u| !u.is_empty()), password.map(Secret))
            }
        };
        let (place, db) = match kind {
            "" => {
                let [node] = <[Endpoint; 1]>::try_from(endpoints(hosts, PORT)?)
                    .map_err(|_| "it names several hosts: use redis+sentinel:// or redis+cluster://")?;
                (Place::Node(node), db(path)?)
            }
            "sentinel" => {
                let (master, path) = path.split_once('/').unwrap_or((path, ""));
                if master.is_empty() {
                    return Err("after the Sentinels it must name their master, as in /mymaster".into());
                }
                let sentinels = endpoints(hosts, SENTINEL_PORT)?;
                (Place::Sentinels { sentinels, master: decoded(master)? }, db(path)?)
            }
            "cluster" => {
                if db(path)? != 0 {
                    return Err("a Redis Cluster has database 0 alone".into());
                }
                (Place::Cluster(endpoints(hosts, PORT)?), 0)
            }
            _ => return Err("after the + it must say sentinel, cluster or unix".into()),
        };
        Ok(Self { place, tls, user, password, db })
    }

    /// The same user, password and TLS, at one node.
    pub(in crate::store::redis) fn at(&self, node: Endpoint) -> Self {
        Self { place: Place::Node(node), ..self.clone() }
    }
}

fn socket(rest: &str) -> Result<Address, String> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if !path.starts_with('/') {
        return Err("the path of its socket must begin with /".into());
    }
    let node = Place::Node(Endpoint::Unix(decoded(path)?.into()));
    let mut address = Address { place: node, tls: false, user: None, password: None, db: 0 };
    for option in options.split('&').filter(|o| !o.is_empty()) {
        match option.split_once('=') {
            Some(("db", number)) => address.db = db(number)?,
            Some(("user", user)) => address.user = Some(decoded(user)?),
            Some(("pass", password)) => address.password = Some(Secret(decoded(password)?)),
            _ => return Err("its options are db, user and pass".into()),
        }
    }
    Ok(address)
}

fn endpoints(hosts: &str, port: u16) -> Result<Vec<Endpoint>, String> {
    let found: Vec<_> = hosts.split(',').map(|h| endpoint(h, port)).collect::<Result<_, _>>()?;
    if found.len() > NODES_MAX {
        return Err(format!("it names more than {NODES_MAX} hosts"));
    }
    Ok(found)
}

/// `host`, `host:port`, `[::1]:port`.
pub(in crate::store::redis) fn endpoint(text: &str, port: u16) -> Result<Endpoint, String> {
    let (host, number) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or("a host that begins with [ ends with ]")?;
            if host.parse::<std::net::Ipv6Addr>().is_err() {
                return Err("between [ and ] stands an IPv6 address".into());
            }
            match rest {
                "" => (host, None),
                rest => (host, Some(rest.strip_prefix(':').ok_or("after ] comes : and the port")?)),
            }
        }
        None => match text.split_once(':') {
            Some((_, rest)) if rest.contains(':') => return Err("an IPv6 address stands in [ and ]".into()),
            Some((host, number)) => (host, Some(number)),
            None => (text, None),
        },
    };
    let odd = |c: char| c.is_whitespace() || c.is_control() || "/\\@%\"'<>".contains(c);
    if host.is_empty() || host.len() > 255 || host.contains(odd) {
        return Err("a host is missing or has signs that no host has".into());
    }
    let port = match number {
        None => port,
        Some(number) => {
            number.parse().ok().filter(|n| *n != 0).ok_or("a port is a number from 1 to 65535")?
        }
    };
    Ok(Endpoint::Tcp(host.to_owned(), port))
}

fn db(path: &str) -> Result<u32, String> {
    if path.is_empty() {
        return Ok(0);
    }
    path.parse().map_err(|_| "the database after / is a number".into())
}

/// Takes `%2F` and the like back.
fn decoded(text: &str) -> Result<String, String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|b| char::from(b).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("a % is followed by two hexadecimal digits; a % itself is %25".into());
        };
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).map_err(|_| "what is encoded with % is no UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp(host.into(), port)
    }

    fn address(place: Place) -> Address {
        Address { place, tls: false, user: None, password: None, db: 0 }
    }

    #[test]
    fn every_form_is_read() {
        let secret = |p: &str| Some(Secret(p.into()));
        let node = |h, p| address(Place::Node(tcp(h, p)));
        for (url, expected) in [
            ("redis://h", node("h", 6379)),
            ("valkey://h:1/3", Address { db: 3, ..node("h", 1) }),
            ("rediss://h/", Address { tls: true, ..node("h", 6379) }),
            ("valkeys://[::1]:7", Address { tls: true, ..node("::1", 7) }),
            ("redis://[fe80::2]", node("fe80::2", 6379)),
            (
                "redis://u:p%40%2F:@w@h",
                Address { user: Some("u".into()), password: secret("p@/:@w"), ..node("h", 6379) },
            ),
            ("redis://:p@h", Address { password: secret("p"), ..node("h", 6379) }),
            ("redis://u@h", Address { user: Some("u".into()), ..node("h", 6379) }),
            ("unix:///run/r.sock", address(Place::Node(Endpoint::Unix("/run/r.sock".into())))),
            (
                "redis+unix:///r?db=2&user=u&pass=a%26b",
                Address {
                    db: 2,
                    user: Some("u".into()),
                    password: secret("a&b"),
                    ..address(Place::Node(Endpoint::Unix("/r".into())))
                },
            ),
            (
                "rediss+sentinel://u:p@a,b:2,[::1]:3/main/4",
                Address {
                    tls: true,
                    user: Some("u".into()),
                    password: secret("p"),
                    db: 4,
                    ..address(Place::Sentinels {
                        sentinels: vec![tcp("a", 26379), tcp("b", 2), tcp("::1", 3)],
                        master: "main".into(),
                    })
                },
            ),
            ("redis+cluster://a:1,b", address(Place::Cluster(vec![tcp("a", 1), tcp("b", 6379)]))),
        ] {
            assert_eq!(Address::parse(url).as_ref(), Ok(&expected), "{url}");
        }
    }

    #[test]
    fn what_cannot_be_used_is_refused_without_being_told() {
        for bad in [
            "secret",
            "http://u:secret@h",
            "redis://u:secret@h:99999999",
            "redis://u:secret@h:0",
            "redis://u:secret@",
            "redis://u:secret@h/x",
            "redis://u:secret@h?protocol=resp3",
            "redis://u:sec%zzret@h",
            "redis://u:secret%ff@h",
            "redis://u:secret@::1:6379",
            "redis://u:secret@[::1",
            "redis://u:secret@[nonsense]:1",
            "redis://u:secret@a,b",
            "redis://u:secret@a b",
            "redis+tcp://u:secret@h",
            "redis+sentinel://u:secret@h",
            "redis+sentinel://u:secret@h/",
            "redis+cluster://u:secret@h/2",
            "redis+cluster://u:secret@h,,i",
            "rediss+unix:///secret",
            "unix://secret",
            "unix:///s?password=secret",
        ] {
            let error = Address::parse(bad).unwrap_err();
            assert!(!error.contains("secret") && !error.is_empty(), "{bad}: {error}");
        }
        let many = format!("redis+cluster://{}", vec!["h"; 65].join(","));
        assert!(Address::parse(&many).is_err());
    }

    #[test]
    fn an_address_is_not_shown() {
        let shown = format!("{:?}", Address::parse("redis://name:secret@host:1").unwrap());
        assert_eq!(shown, "Address { of: \"a Redis\", tls: false, .. }");
        let sentinel = Address::parse("redis+sentinel://name:secret@host/x").unwrap();
        let node = sentinel.at(tcp("a", 1));
        assert_eq!(node.password, Some(Secret("secret".into())));
        assert!(!format!("{node:?} {:?}", node.password).contains("secret"));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(rediss?|valkey|unix)(\\+[a-z]{0,8})?://\\PC{0,60}") {
            drop(Address::parse(&text));
        }
    }
}
