module app

go 1.25.0

require (
	github.com/pulumi/pulumi-random/sdk/v4 v4.18.0
	github.com/pulumi/pulumi/sdk/v3 v3.259.0
)
