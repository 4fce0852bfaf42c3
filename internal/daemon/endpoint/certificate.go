// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// selfSigned is the validity of a self-signed certificate, which no client can verify.
const selfSigned = 10 * 365 * 24 * time.Hour

// certificate is the server's certificate. get reads the certificate again when its files change,
// as the files of a mounted Secret do.
type certificate struct {
	dir string // "" for a self-signed certificate
	log *slog.Logger

	mu      sync.Mutex
	current *tls.Certificate
	changed [2]time.Time // modification times of both files
}

func newCertificate(dir string, log *slog.Logger) (*certificate, error) {
	c := &certificate{dir: dir, log: log}
	if dir != "" {
		return c, c.read()
	}
	var err error
	c.current, err = sign()
	return c, err
}

func (c *certificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.dir != "" {
		if err := c.read(); err != nil {
			c.log.Error("failed to read the certificate of the metrics endpoint; keeping the previous certificate", "error", err)
		}
	}
	return c.current, nil
}

// read reads the certificate if its files have changed.
func (c *certificate) read() error {
	files := [2]string{filepath.Join(c.dir, "tls.crt"), filepath.Join(c.dir, "tls.key")}
	var changed [2]time.Time
	for i, file := range files {
		info, err := os.Stat(file)
		if err != nil {
			return fmt.Errorf("find the certificate of the metrics: %w", err)
		}
		changed[i] = info.ModTime()
	}
	if changed == c.changed {
		return nil
	}
	c.changed = changed // log a broken certificate once
	pair, err := tls.LoadX509KeyPair(files[0], files[1])
	if err != nil {
		return fmt.Errorf("read the certificate of the metrics: %w", err)
	}
	c.current = &pair
	return nil
}

// sign creates a self-signed certificate.
func sign() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for the metrics: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()), Subject: pkix.Name{CommonName: "nri-vgpu"}, DNSNames: []string{"nri-vgpu"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(selfSigned),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the metrics: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
