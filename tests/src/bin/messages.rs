//! `make messages`: writes docs/messages.md.

fn main() -> std::io::Result<()> {
    std::fs::write("docs/messages.md", driftless_tests::messages::page())
}
