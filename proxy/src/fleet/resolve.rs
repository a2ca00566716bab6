//! Host names with several addresses: each address is an engine.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use tokio::net::lookup_host;
use tokio::time::timeout;

use crate::bounds::RESOLVE_WAIT;
use crate::config::spec::EngineSpec;

/// An engine with the address of its host, if that has several.
pub(super) type Resolved = (EngineSpec, Option<IpAddr>);

/// The engines that `specs` name. Only names behind `http://` are looked at: the addresses behind
/// an `https://` name are those of one service, which balances by itself.
/// Where a look-up fails, the addresses are those that were `known`.
pub(super) async fn resolve(
    specs: &[EngineSpec],
    known: impl Fn(&EngineSpec) -> Vec<IpAddr>,
) -> Vec<Resolved> {
    let mut all = Vec::new();
    for spec in specs {
        let addresses = addresses_of(spec).await.unwrap_or_else(|| known(spec));
        match addresses.len() {
            0 | 1 => all.push((spec.clone(), None)),
            _ => all.extend(addresses.into_iter().map(|address| {
                let port = spec.upstream.host().1;
                let name = SocketAddr::new(address, port).to_string().replace(['[', ']'], "");
                (
                    EngineSpec { name: format!("{}@{name}", spec.name), ..spec.clone() },
                    Some(address),
                )
            })),
        }
    }
    all
}

/// The addresses of a host, of one family; `None` if they cannot be looked up.
async fn addresses_of(spec: &EngineSpec) -> Option<Vec<IpAddr>> {
    let (host, port) = spec.upstream.host();
    let is_name = host.parse::<IpAddr>().is_err() && host != "localhost";
    if !is_name || spec.upstream.is_https() {
        return Some(Vec::new());
    }
    let found = timeout(RESOLVE_WAIT, lookup_host((host, port))).await.ok()?.ok()?;
    let all: BTreeSet<IpAddr> = found.map(|address| address.ip()).collect();
    Some(one_family(all))
}

/// Those of version 4, or all if there are none: a host that has both is one server.
fn one_family(all: BTreeSet<IpAddr>) -> Vec<IpAddr> {
    let has_v4 = all.iter().any(IpAddr::is_ipv4);
    all.into_iter().filter(|address| address.is_ipv4() || !has_v4).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_with_two_families_is_one() {
        let both = ["127.0.0.1", "::1"].map(|text| text.parse().unwrap());
        assert_eq!(one_family(both.into()).len(), 1);
        let two = ["10.0.0.2", "10.0.0.1"].map(|text| text.parse().unwrap());
        assert_eq!(one_family(two.into()).len(), 2);
    }

    #[tokio::test]
    async fn addresses_and_this_machine_are_not_looked_up() {
        for text in ["http://127.0.0.1:1", "http://localhost:1", "https://example.invalid"] {
            let resolved = resolve(&[text.parse().unwrap()], |_| Vec::new()).await;
            assert_eq!((resolved.len(), resolved[0].1), (1, None), "{text}");
        }
    }
}
