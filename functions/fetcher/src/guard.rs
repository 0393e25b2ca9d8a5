//! Where a function that fetches for tenants never connects to, whatever a URL says or a name resolves to.

use std::{
    io::{Error, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A resolver that gives out only addresses that may be connected to: what it checks is what is dialled, so that a name that resolves
/// to something else a moment later gains nothing. An address that is written out in a URL is never resolved: ask [`refused`] first.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// This very machine may be reached.
    pub allow_loopback: bool,
}

/// Why an address must not be connected to, if it must not. Addresses of private networks may: clusters and git servers are there.
#[must_use]
pub fn refused(address: IpAddr, allow_loopback: bool) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => refused_v4(address, allow_loopback),
        IpAddr::V6(address) => refused_v6(address, allow_loopback),
    }
}

fn refused_v4(address: Ipv4Addr, allow_loopback: bool) -> Option<&'static str> {
    match address.octets() {
        [0, ..] => Some("an unspecified address"),
        [127, ..] if !allow_loopback => Some("a loopback address"),
        // The metadata and credentials endpoints of EC2, ECS and EKS are here.
        [169, 254, ..] => Some("a link-local address"),
        [224..=239, ..] => Some("a multicast address"),
        [240..=255, ..] => Some("a reserved address"),
        _ => None,
    }
}

fn refused_v6(address: Ipv6Addr, allow_loopback: bool) -> Option<&'static str> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("an unspecified address"),
        [0, 0, 0, 0, 0, 0, 0, 1] => (!allow_loopback).then_some("a loopback address"),
        // An IPv4 address in another form: mapped or compatible, or behind a translator: NAT64 or 6to4.
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            refused_v4(Ipv4Addr::new(a, b, c, d), allow_loopback)
        }
        [0xfe80..=0xfebf, ..] => Some("a link-local address"),
        [0xfd00, 0xec2, ..] => Some("an address of the metadata service"),
        [0xff00..=0xffff, ..] => Some("a multicast address"),
        _ => None,
    }
}

impl Resolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let Self { allow_loopback } = *self;
        Box::pin(async move {
            let name = name.as_str();
            let found = tokio::net::lookup_host((name, 0)).await?;
            let (mut allowed, mut why) = (Vec::<SocketAddr>::new(), "no address");
            for address in found {
                match refused(address.ip(), allow_loopback) {
                    Some(refusal) => why = refusal,
                    None => allowed.push(address),
                }
            }
            if allowed.is_empty() {
                let message = format!("{name} is {why}, which is never connected to");
                return Err(Error::new(ErrorKind::PermissionDenied, message).into());
            }
            Ok(Box::new(allowed.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_link_local_and_such_addresses_are_refused_in_every_form() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.8.8.8",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:169.254.169.254",
            "::ffff:127.0.0.1",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "febf::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "ff02::1",
        ] {
            assert!(refused(address.parse().unwrap(), false).is_some(), "{address}");
        }
    }

    #[test]
    fn addresses_of_private_networks_and_of_the_internet_are_not() {
        for address in ["10.0.0.1", "172.20.0.10", "192.168.1.1", "100.64.0.7", "140.82.121.4", "fd12:3456::1", "2606:50c0::1"] {
            assert_eq!(refused(address.parse().unwrap(), false), None, "{address}");
        }
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(refused(address.parse().unwrap(), true), None, "{address}");
        }
        assert!(refused("169.254.169.254".parse().unwrap(), true).is_some());
    }

    #[tokio::test]
    async fn a_name_is_not_resolved_to_what_is_refused() {
        let resolve = async |allow_loopback| Guard { allow_loopback }.resolve("localhost".parse().unwrap()).await;
        let error = resolve(false).await.err().unwrap().to_string();
        assert_eq!(error, "localhost is a loopback address, which is never connected to");
        assert!(resolve(true).await.unwrap().count() > 0);
    }
}
