package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

const (
	lanes     = 16
	giveUpAt  = 120 * time.Second
	bodyBytes = 1000
)

// sendMany sends COUNT messages, signed if RAFTMQ_ACCESS_KEY is set, each again until it is acknowledged. It prints the
// number of each one that was. Arguments: TOPIC PREFIX COUNT SECONDS, over which the messages are spread.
func sendMany(arguments []string) {
	topic, name := arguments[0], arguments[1]
	count, err := strconv.Atoi(arguments[2])
	check(err)
	seconds, err := strconv.ParseFloat(arguments[3], 64)
	check(err)
	plain, err := rocketmq.NewProducer(
		producer.WithNsResolver(resolver()),
		producer.WithGroupName(name+"-senders"),
		producer.WithRetry(2),
		producer.WithSendMsgTimeout(3*time.Second),
		producer.WithCredentials(primitive.Credentials{
			AccessKey: os.Getenv("RAFTMQ_ACCESS_KEY"), SecretKey: os.Getenv("RAFTMQ_SECRET_KEY")}),
	)
	check(err)
	check(plain.Start())
	pad := strings.Repeat(".", bodyBytes)
	began := time.Now()
	var sending sync.WaitGroup
	for lane := range lanes {
		sending.Add(1)
		go func() {
			defer sending.Done()
			for number := lane; number < count; number += lanes {
				time.Sleep(time.Until(began.Add(time.Duration(seconds * float64(time.Second) * float64(number) / float64(count)))))
				body := fmt.Sprintf("%s-%d %s", name, number, pad)
				for until := time.Now().Add(giveUpAt); ; time.Sleep(50 * time.Millisecond) {
					result, err := plain.SendSync(context.Background(), primitive.NewMessage(topic, []byte(body)))
					if err == nil && result.Status == primitive.SendOK {
						output.Lock()
						fmt.Println(number)
						output.Unlock()
						break
					}
					if time.Now().After(until) {
						fmt.Fprintln(os.Stderr, number, result, err)
						break
					}
				}
			}
		}()
	}
	sending.Wait()
	check(plain.Shutdown())
}
