// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os/exec"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/test/testbed"
)

// compare waits until kubectl vgpu and the web page show the oracle's amounts of each pod.
func compare(ctx context.Context, bed *testbed.Bed, rows []row) error {
	page, end, err := openPage(ctx, bed)
	if err != nil {
		return err
	}
	defer end()
	var last error
	err = wait.PollUntilContextTimeout(ctx, time.Second, patience, true, func(ctx context.Context) (bool, error) {
		last = compareOnce(ctx, bed, page, rows)
		return last == nil, nil
	})
	if err != nil {
		return errors.Join(last, err)
	}
	return nil
}

func compareOnce(ctx context.Context, bed *testbed.Bed, page string, rows []row) error {
	output, err := bed.KubectlVgpu(ctx, "get", "pods", "-A", "-o", "json")
	if err != nil {
		return err
	}
	var listed []agentapi.Container
	if err := json.Unmarshal([]byte(output), &listed); err != nil {
		return fmt.Errorf("read the output of kubectl vgpu get pods: %w", err)
	}
	fleet, err := readPage(ctx, page)
	if err != nil {
		return err
	}
	var shown []agentapi.Container
	for _, o := range fleet.Overviews {
		shown = append(shown, o.Containers...)
	}
	for _, r := range rows {
		if a, b, want := usedBy(r.pod, listed), usedBy(r.pod, shown), sum(r.held); a != want || b != want {
			return fmt.Errorf("pod %s holds %d bytes; kubectl vgpu shows %d, and the web page %d", r.pod.Name, want, a, b)
		}
	}
	return nil
}

// usedBy returns the used memory of a pod in a list of containers, in bytes.
func usedBy(pod *corev1.Pod, list []agentapi.Container) (bytes uint64) {
	for _, c := range list {
		if c.Namespace != pod.Namespace || c.Pod != pod.Name {
			continue
		}
		for _, s := range c.GPUs {
			if s.MemoryUsedBytes != nil {
				bytes += *s.MemoryUsedBytes
			}
		}
	}
	return bytes
}

// openPage runs kubectl vgpu view. openPage returns the page's address, and a function that ends
// the command.
func openPage(ctx context.Context, bed *testbed.Bed) (address string, end func(), err error) {
	command := exec.CommandContext(ctx, bed.Kubectl(), "vgpu", "view")
	command.Env = bed.Plugins()
	out, err := command.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := command.Start(); err != nil {
		return "", nil, fmt.Errorf("run kubectl vgpu view: %w", err)
	}
	end = func() {
		_ = command.Process.Signal(syscall.SIGINT)
		_ = command.Wait()
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		end()
		return "", nil, fmt.Errorf("read the address that kubectl vgpu view prints: %w", err)
	}
	return strings.TrimSpace(line), end, nil
}

// readPage reads the data that the page shows.
func readPage(ctx context.Context, page string) (agentapi.Fleet, error) {
	var fleet agentapi.Fleet
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page+"fleet", nil)
	if err != nil {
		return fleet, err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return fleet, fmt.Errorf("read the web page: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fleet, fmt.Errorf("read the web page: %s", answer.Status)
	}
	if err := json.NewDecoder(answer.Body).Decode(&fleet); err != nil {
		return fleet, fmt.Errorf("read the web page: %w", err)
	}
	return fleet, nil
}
