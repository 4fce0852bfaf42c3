// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// handlerMetric is the agent's metric for the durations of its handlers.
const handlerMetric = "nri_vgpu_handler_duration_seconds"

// handled contains the durations of the agent's handler: the runtime's wait without the transport.
// The agent measures the durations.
type handled struct {
	Measure string  `json:"measure"` // "handler"
	Which   string  `json:"which"`   // "all", or the outcome
	Count   uint64  `json:"count"`
	MeanMs  float64 `json:"mean_ms"`
	// SlowPercent is the percentage of calls that exceed maxCreateMs, the bound for 99 of 100
	// calls.
	SlowPercent float64 `json:"over_2_ms_percent"`
}

// handlers returns the durations of the agent's handler for CreateContainer, by outcome
// and in total.
func handlers(ctx context.Context, address string) ([]handled, error) {
	return handlersOf(ctx, address, "granted", "withheld")
}

func handlersOf(ctx context.Context, address string, outcomes ...string) ([]handled, error) {
	families, err := scrape(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("read the agent's metrics: %w", err)
	}
	byOutcome := map[string]*dto.Histogram{}
	for _, m := range families[handlerMetric].GetMetric() {
		labels := map[string]string{}
		for _, pair := range m.GetLabel() {
			labels[pair.GetName()] = pair.GetValue()
		}
		if labels["handler"] == "CreateContainer" {
			byOutcome[labels["outcome"]] = m.GetHistogram()
		}
	}
	var parts []*dto.Histogram
	for _, outcome := range outcomes {
		if byOutcome[outcome] == nil {
			return nil, fmt.Errorf("the agent has no %s of the outcome %s", handlerMetric, outcome)
		}
		parts = append(parts, byOutcome[outcome])
	}
	all, err := newHandled("all", parts)
	if err != nil {
		return nil, err
	}
	result := []handled{all}
	for i, outcome := range outcomes {
		one, err := newHandled(outcome, parts[i:i+1])
		if err != nil {
			return nil, err
		}
		result = append(result, one)
	}
	return result, nil
}

// newHandled adds up histograms.
func newHandled(which string, parts []*dto.Histogram) (handled, error) {
	var sum float64
	var count, within uint64
	for _, h := range parts {
		sum += h.GetSampleSum()
		count += h.GetSampleCount()
		bounded := false
		for _, b := range h.GetBucket() {
			if b.GetUpperBound() == maxCreateMs/1000. {
				within += b.GetCumulativeCount()
				bounded = true
			}
		}
		if !bounded {
			return handled{}, fmt.Errorf("%s has no bucket that ends at %d ms", handlerMetric, maxCreateMs)
		}
	}
	if count == 0 {
		return handled{}, errors.New("the agent's handler was not called")
	}
	return handled{"handler", which, count, thousandths(1000 * sum / float64(count)), thousandths(100 * float64(count-within) / float64(count))}, nil
}

func scrape(ctx context.Context, address string) (map[string]*dto.MetricFamily, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}
