// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/daemon"
	"github.com/nri-vgpu/nri-vgpu/internal/daemon/endpoint"
	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
)

// clients are the clients of the API server. Each client has its own rate limiter. Reads of a
// handler thus wait neither behind Events nor behind answers to the scheduler. The labels of the mode
// fit wait behind neither. The client reviews is nil unless the API server decides who may read
// metrics.
type clients struct{ reads, writes, answers, labels, reviews kubernetes.Interface }

// These bounds limit the request rate of each client. Tenants cause Events and evictions.
const (
	requestsPerSecond = 5
	requestBurst      = 10
)

func connect(kubeconfig string) (clients, error) {
	cfg, err := daemon.APIServer(kubeconfig, "nri-vgpu")
	if err != nil {
		return clients{}, err
	}
	// Protobuf costs a fraction of JSON's time and memory.
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	// These bounds are client-go's defaults; docs/reference/bounds.md lists them.
	cfg.QPS, cfg.Burst = requestsPerSecond, requestBurst
	var c clients
	for _, client := range []*kubernetes.Interface{&c.reads, &c.writes, &c.answers} {
		made, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			return clients{}, fmt.Errorf("make a Kubernetes client: %w", err)
		}
		*client = made
	}
	cfg.QPS = nodereport.PerSecond // each report may need other labels
	if c.labels, err = kubernetes.NewForConfig(cfg); err != nil {
		return clients{}, fmt.Errorf("make a Kubernetes client: %w", err)
	}
	c.reviews, err = endpoint.Reviews(cfg)
	return c, err
}
