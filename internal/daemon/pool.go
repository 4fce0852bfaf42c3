// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"

	"github.com/nri-vgpu/nri-vgpu/internal/loop"
	"github.com/nri-vgpu/nri-vgpu/pkg/config"
)

// ErrMoved means that the Node's labels select another pool. The program ends, and starts again with
// the other pool's configuration.
var ErrMoved = errors.New("the Node's labels select another pool of config.toml: restarting with its configuration")

// Pooled is the configuration of a program's Node.
type Pooled struct {
	config.Config
	// Pool is the name of the Node's pool, "" if the Node is in no pool.
	Pool string

	file config.File
}

// Moved reports whether a Node with these labels has another pool.
func (p Pooled) Moved(labels map[string]string) bool {
	_, pool := p.file.For(labels)
	return pool != p.Pool
}

// labelsPatience bounds one request for the Node's labels, and labelsPause is the pause between two
// requests.
const (
	labelsPatience = 5 * time.Second
	labelsPause    = time.Second
)

// Pool returns the configuration of a Node. If the file has pools, Pool waits until the API server
// has answered. Another pool's configuration would offer other GPUs, or other parts of GPUs.
func Pool(ctx context.Context, file config.File, client kubernetes.Interface, node string, log *slog.Logger) (Pooled, error) {
	if len(file.Pools) == 0 {
		return Pooled{Config: file.Config, file: file}, nil
	}
	var failure loop.Failure
	for {
		labels, err := labelsOf(ctx, client, node)
		if err == nil {
			cfg, pool := file.For(labels)
			log.Info("chose the configuration of the Node's pool", "pool", pool)
			return Pooled{cfg, pool, file}, nil
		}
		if failure.Note(err) == loop.Failed {
			log.Warn("failed to read the Node's labels, which select its pool; retrying", "error", err)
		}
		if !loop.Sleep(ctx, labelsPause) {
			return Pooled{}, fmt.Errorf("choose the pool of config.toml: %w", err)
		}
	}
}

// labelsOf returns the labels of a Node. The programs may list Nodes, and may not get Nodes.
func labelsOf(ctx context.Context, client kubernetes.Interface, node string) (map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, labelsPatience)
	defer cancel()
	found, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, node).String()})
	if err != nil {
		return nil, fmt.Errorf("read the labels of node %q: %w", node, err)
	}
	if len(found.Items) == 0 {
		return nil, fmt.Errorf("read the labels of node %q: there is no such Node", node)
	}
	return found.Items[0].Labels, nil
}
