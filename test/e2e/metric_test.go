// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// metrics returns the agent's metrics, from its port on the node.
func metrics(t *testing.T) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+bed.Cluster.Address+":9394/metrics", http.NoBody)
	if err != nil {
		return "", err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

// waitSaid waits until the agent's metrics contain a line.
func waitSaid(t *testing.T, line string, within time.Duration) {
	t.Helper()
	var last string
	for deadline := time.Now().Add(within); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		body, err := metrics(t)
		if err == nil && strings.Contains("\n"+body, "\n"+line+"\n") {
			return
		}
		if err != nil {
			last = err.Error()
		}
	}
	t.Fatalf("the agent's metrics do not contain %q within %v (%s)", line, within, last)
}
