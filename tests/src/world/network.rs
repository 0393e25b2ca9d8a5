//! Ports and addresses of this machine.

use std::{
    fs,
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

use anyhow::{Context, Result};

/// Below the range from which the kernel takes the ports of outgoing connections: one of those
/// could take a port between its choice and its use.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

/// A TCP port of `address` without a listener, which this process has not returned before.
pub fn free_port(address: Ipv4Addr) -> Result<u16> {
    static GIVEN: AtomicU16 = AtomicU16::new(0);
    // Two processes start at different positions, so that they seldom choose the same port at once.
    let start = u16::try_from(std::process::id().wrapping_mul(97) % u32::from(COUNT))?;
    (0..COUNT)
        .map(|_| FIRST + (start + GIVEN.fetch_add(1, Ordering::Relaxed) % COUNT) % COUNT)
        .find(|port| TcpListener::bind((address, *port)).is_ok())
        .context("no free port is left")
}

/// An address of this machine that is neither loopback nor link-local: the API server refuses both
/// as an endpoint of a Service.
pub fn own_address() -> Result<Ipv4Addr> {
    let table = fs::read_to_string("/proc/net/fib_trie")?;
    local_addresses(&table).find(|address| !address.is_loopback() && !address.is_link_local()).context(
        "this machine has only loopback addresses, and the API server's service proxy accepts none of them; \
         one that stays on the machine will do: ip address add 198.18.0.1/32 dev lo",
    )
}

/// The machine's own addresses in the kernel's routing table, which is the only list of them that
/// is a file:
///
/// ```text
///      |-- 192.0.2.2
///         /32 host LOCAL
/// ```
fn local_addresses(fib_trie: &str) -> impl Iterator<Item = Ipv4Addr> {
    let lines = || fib_trie.lines().map(str::trim);
    lines()
        .zip(lines().skip(1))
        .filter(|(_, next)| *next == "/32 host LOCAL")
        .filter_map(|(line, _)| line.strip_prefix("|-- ")?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_addresses_are_told_from_networks_and_broadcasts() {
        let table = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n        |-- 127.0.0.1\n           /32 host LOCAL\n        \
                     |-- 192.0.2.2\n           /32 host LOCAL\n        |-- 192.0.2.255\n           /32 link BROADCAST\n";
        let found: Vec<_> = local_addresses(table).collect();
        assert_eq!(found, [Ipv4Addr::LOCALHOST, Ipv4Addr::new(192, 0, 2, 2)]);
    }

    #[test]
    fn a_port_is_given_out_once() {
        let ports: Vec<_> = (0..20).map(|_| free_port(Ipv4Addr::LOCALHOST).unwrap()).collect();
        let distinct: std::collections::BTreeSet<_> = ports.iter().collect();
        assert_eq!(distinct.len(), ports.len());
    }
}
