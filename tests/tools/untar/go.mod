module driftless.dev/tests/untar

go 1.24
