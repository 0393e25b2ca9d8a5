import os

import pulumi
from pulumi_command import local

directory = os.path.dirname(os.path.abspath(__file__))

# A directory or an environment that changes runs the command again.
resource = local.Command(
    "marker",
    create='cp "$SOURCE/Pulumi.yaml" "$MARKER"',
    delete='rm "$MARKER"',
    dir=directory,
    environment={
        "KUBECONFIG": os.environ.get("KUBECONFIG", ""),
        "MARKER": pulumi.Config().require("marker"),
        "REGION": os.environ.get("AWS_REGION", ""),
        "SOURCE": directory,
    },
)

pulumi.export("environment", resource.environment)
