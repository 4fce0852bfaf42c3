// SPDX-License-Identifier: Apache-2.0

package assign

import (
	"encoding/json"
	"fmt"

	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// GPUsAnnotation is the annotation of a Node that lists the node's GPUs. nri-vgpu-scheduler chooses
// among the listed GPUs. Only changes of the hardware and of its health change the annotation.
const GPUsAnnotation = "nri-vgpu.io/gpus"

// card is a GPU in GPUsAnnotation.
type card struct {
	UUID        string `json:"uuid"`
	Index       int    `json:"index"`
	Name        string `json:"name"`
	MemoryBytes uint64 `json:"memoryBytes"`
	Healthy     bool   `json:"healthy"`
	// MIG is the place of a MIG device, which pods can choose by its GPU.
	MIG gpu.MIG `json:"mig,omitzero"`
}

// FormatGPUs returns the annotation of a Node with these GPUs.
func FormatGPUs(gpus []gpu.GPU) string {
	cards := make([]card, len(gpus))
	for i, g := range gpus {
		cards[i] = card{g.UUID, g.Index, g.Name, g.MemoryBytes, g.Healthy, g.MIG}
	}
	// Marshal cannot fail for a card.
	text, _ := json.Marshal(cards)
	return string(text)
}

// ParseGPUs returns the GPUs of a Node's annotation.
func ParseGPUs(text string) ([]gpu.GPU, error) {
	var cards []card
	if err := json.Unmarshal([]byte(text), &cards); err != nil {
		return nil, fmt.Errorf("annotation %s is not a list of GPUs: %w", GPUsAnnotation, err)
	}
	gpus := make([]gpu.GPU, len(cards))
	for i, c := range cards {
		gpus[i] = gpu.GPU{UUID: c.UUID, Index: c.Index, Name: c.Name, MemoryBytes: c.MemoryBytes, Healthy: c.Healthy, MIG: c.MIG}
	}
	return gpus, nil
}
