//! The addresses that a function which fetches for tenants never connects to, whatever a URL says
//! or a name resolves to.

use std::{
    io::{Error, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

/// A resolver that returns only allowed addresses. The client connects to exactly the address that
/// was checked, so a name that resolves to another one a moment later gains nothing. An address in
/// a URL is never resolved: check it with [`refused`] first.
#[derive(Clone, Copy, Debug)]
pub struct Guard {
    /// Allow loopback addresses.
    pub allow_loopback: bool,
}

/// Private git hosts that tenants may name. Without this list, the fetcher would scan private
/// networks for a tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PrivateHosts {
    names: Vec<String>,
    /// An address in IPv6 form, and the length of its prefix.
    networks: Vec<(u128, u32)>,
}

impl FromStr for PrivateHosts {
    type Err = String;

    /// Reads names, addresses and CIDR blocks, separated by commas.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut hosts = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (address, bits) = part.split_once('/').map_or((part, None), |(address, bits)| (address, Some(bits)));
            match (address.parse::<IpAddr>(), bits) {
                (Ok(address), bits) => {
                    let most = if address.is_ipv4() { 32 } else { 128 };
                    let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|bits| *bits <= most));
                    let bits = bits.ok_or_else(|| format!("{part:?} is not a CIDR block; write one such as 10.1.0.0/16"))?;
                    hosts.networks.push((bits_of(address), bits + 128 - most));
                }
                (Err(_), None) => hosts.names.push(part.trim_end_matches('.').to_ascii_lowercase()),
                (Err(_), Some(_)) => {
                    return Err(format!("{part:?} is neither a host nor a CIDR block; write one such as 10.1.0.0/16"));
                }
            }
        }
        Ok(hosts)
    }
}

impl PrivateHosts {
    /// Returns whether a host with this address may be connected to: it is not private, or it is
    /// listed.
    #[must_use]
    pub fn allow(&self, host: &str, address: IpAddr) -> bool {
        let is_listed = |(network, bits): &(u128, u32)| (bits_of(address) ^ network).checked_shr(128 - bits).unwrap_or(0) == 0;
        !is_private(address) || self.has_name(host) || self.networks.iter().any(is_listed)
    }

    /// Returns whether the host is listed by its name.
    #[must_use]
    pub fn has_name(&self, host: &str) -> bool {
        self.names.iter().any(|name| host.trim_end_matches('.').eq_ignore_ascii_case(name))
    }
}

/// The address as 128 bits, with IPv4 in its IPv6-mapped form.
fn bits_of(address: IpAddr) -> u128 {
    match canonical(address) {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

/// Returns whether an address belongs to a private network.
#[must_use]
pub fn is_private(address: IpAddr) -> bool {
    match canonical(address) {
        // 100.64.0.0/10 is carrier-grade NAT, which AWS and CNIs use for Pods; 198.18.0.0/15 is for
        // benchmarks, 192.0.0.0/24 for protocols.
        IpAddr::V4(address) => {
            address.is_private() || matches!(address.octets(), [100, 64..=127, ..] | [198, 18..=19, ..] | [192, 0, 0, _])
        }
        IpAddr::V6(address) => matches!(address.segments(), [0xfc00..=0xfdff | 0xfec0..=0xfeff, ..]),
    }
}

/// Unwraps an IPv4 address from its mapped, compatible, NAT64 or 6to4 form.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(wrapped) = address else { return address };
    match wrapped.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => address,
        [0, 0, 0, 0, 0, 0xffff | 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..] => {
            let ([a, b], [c, d]) = (high.to_be_bytes(), low.to_be_bytes());
            IpAddr::V4(Ipv4Addr::new(a, b, c, d))
        }
        _ => address,
    }
}

/// Why an address is never connected to, whatever the settings.
#[must_use]
pub fn refused(address: IpAddr, allow_loopback: bool) -> Option<&'static str> {
    match canonical(address) {
        IpAddr::V4(address) => refused_v4(address, allow_loopback),
        IpAddr::V6(address) => refused_v6(address, allow_loopback),
    }
}

fn refused_v4(address: Ipv4Addr, allow_loopback: bool) -> Option<&'static str> {
    match address.octets() {
        [0, ..] => Some("an unspecified address"),
        [127, ..] if !allow_loopback => Some("a loopback address"),
        // It contains the metadata and credentials endpoints of EC2, ECS and EKS.
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
                let message = format!("{name} is {why}, which is not allowed");
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
    fn metadata_and_link_local_addresses_are_refused_in_every_form() {
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
    fn private_and_public_addresses_are_not_refused() {
        for address in ["10.0.0.1", "172.20.0.10", "192.168.1.1", "100.64.0.7", "140.82.121.4", "fd12:3456::1", "2606:50c0::1"] {
            assert_eq!(refused(address.parse().unwrap(), false), None, "{address}");
        }
        for address in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(refused(address.parse().unwrap(), true), None, "{address}");
        }
        assert!(refused("169.254.169.254".parse().unwrap(), true).is_some());
    }

    #[test]
    fn private_address_is_allowed_only_where_it_is_listed() {
        let allowed =
            |list: &str, host: &str, address: &str| list.parse::<PrivateHosts>().unwrap().allow(host, address.parse().unwrap());
        for address in [
            "10.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "100.64.0.7",
            "::ffff:10.0.0.1",
            "64:ff9b::10.0.0.1",
            "2002:a00:1::1",
            "fd12:3456::1",
            "fec0::1",
        ] {
            assert!(!allowed("", "git.example.com", address), "{address}");
            assert!(allowed("other.example.com, Git.Example.Com.", "git.example.com", address), "{address}");
            assert!(allowed("10.0.0.0/8,172.16.0.0/12,192.168.1.1,100.64.0.0/10,fc00::/7,fec0::/10", "x", address), "{address}");
        }
        for address in ["140.82.121.4", "2606:50c0::1", "172.32.0.1", "100.128.0.1"] {
            assert!(allowed("", "github.com", address), "{address}");
        }
        assert!(!allowed("10.1.0.0/16", "x", "10.2.0.1") && allowed("10.1.0.0/16", "x", "10.1.255.1"));
        assert!(!allowed("10.1.2.3", "x", "10.1.2.4") && !allowed("git.example.com", "evil.git.example.com", "10.1.2.4"));
        for list in ["10.0.0.0/33", "10.0.0.0/x", "git.example.com/8", "10.0.0/8"] {
            assert!(list.parse::<PrivateHosts>().unwrap_err().contains(list), "{list}");
        }
    }

    #[tokio::test]
    async fn a_name_is_not_resolved_to_what_is_refused() {
        let resolve = async |allow_loopback| Guard { allow_loopback }.resolve("localhost".parse().unwrap()).await;
        let error = resolve(false).await.err().unwrap().to_string();
        assert_eq!(error, "localhost is a loopback address, which is not allowed");
        assert!(resolve(true).await.unwrap().count() > 0);
    }
}
