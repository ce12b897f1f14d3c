"""The kubelet's gRPC interfaces to a DRA plugin; hack/generate makes the code."""
