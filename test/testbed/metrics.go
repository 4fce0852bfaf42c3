// SPDX-License-Identifier: Apache-2.0

package testbed

import (
	"context"
	"fmt"
	"net"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// agentPort is the port of the agent's metrics, on the node's address.
const agentPort = "9394"

// Metric returns the sum of an agent's metric over all series with these labels, and 0 if no series
// matches. Metric does not use the API server.
func (b *Bed) Metric(ctx context.Context, name string, labels map[string]string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(b.Cluster.Address, agentPort)+"/metrics", http.NoBody)
	if err != nil {
		return 0, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, fmt.Errorf("query the agent's metrics: %w", err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return 0, fmt.Errorf("read the agent's metrics: %w", err)
	}
	sum := 0.0
	for _, m := range families[name].GetMetric() {
		if hasLabels(m, labels) {
			sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return sum, nil
}

func hasLabels(m *dto.Metric, want map[string]string) bool {
	found := 0
	for _, pair := range m.GetLabel() {
		value, ok := want[pair.GetName()]
		if ok && value != pair.GetValue() {
			return false
		}
		if ok {
			found++
		}
	}
	return found == len(want)
}
